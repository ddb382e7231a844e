# What `make install` puts where, for pkg-config and find_package alike.
include(CMakePackageConfigHelpers)

# The man pages are what the command itself says.
set(OARSONG_MAN ${CMAKE_BINARY_DIR}/oarsong.1 ${CMAKE_BINARY_DIR}/oarsong-run.1)
add_custom_command(OUTPUT ${OARSONG_MAN}
    COMMAND ${CMAKE_SOURCE_DIR}/scripts/make-man $<TARGET_FILE:oarsong_command>
        ${CMAKE_BINARY_DIR}
    DEPENDS oarsong_command ${CMAKE_SOURCE_DIR}/scripts/make-man VERBATIM)

# All that is installed, without the tests: what `make install` builds.
get_property(engines GLOBAL PROPERTY OARSONG_ENGINES)
add_custom_target(oarsong_installed ALL DEPENDS ${OARSONG_MAN})
add_dependencies(oarsong_installed oarsong oarsong_static oarsong_command
    ${engines})
if(TARGET oarsong_kernels)
    add_dependencies(oarsong_installed oarsong_kernels)
endif()

install(TARGETS oarsong EXPORT oarsongTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS oarsong_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${OARSONG_MAN} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES completions/oarsong.bash RENAME oarsong
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES LICENSE README.md CHANGELOG.md SECURITY.md
    DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR}
    PATTERN decisions EXCLUDE)
install(TARGETS oarsong_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/oarsong DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.h" PATTERN "abi.json")
install(FILES ${CMAKE_BINARY_DIR}/include/oarsong/version.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/oarsong)

# The Python package, where the Python of this machine looks below the prefix.
find_program(OARSONG_PYTHON3 python3 PATHS /usr/bin NO_DEFAULT_PATH)
find_program(OARSONG_PYTHON3 python3)
if(OARSONG_PYTHON3)
    execute_process(COMMAND ${OARSONG_PYTHON3} -c
        "import os, sys; print('lib/python%d.%d/%s' % (*sys.version_info[:2],
        'dist-packages' if os.path.exists('/etc/debian_version')
        else 'site-packages'))"
        OUTPUT_VARIABLE OARSONG_PYTHON_DIR OUTPUT_STRIP_TRAILING_WHITESPACE)
    install(DIRECTORY python/oarsong DESTINATION ${OARSONG_PYTHON_DIR}
        FILES_MATCHING PATTERN "*.py" PATTERN "_torch*")
endif()
install(EXPORT oarsongTargets NAMESPACE oarsong::
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/oarsong)

configure_package_config_file(cmake/oarsongConfig.cmake.in
    ${CMAKE_BINARY_DIR}/oarsongConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/oarsong)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/oarsongConfigVersion.cmake
    COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_BINARY_DIR}/oarsongConfig.cmake
    ${CMAKE_BINARY_DIR}/oarsongConfigVersion.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/oarsong)

# Written when it is installed: `cmake --install --prefix` decides where to.
install(CODE "
    set(CMAKE_INSTALL_LIBDIR ${CMAKE_INSTALL_LIBDIR})
    set(CMAKE_INSTALL_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR})
    set(PROJECT_VERSION ${PROJECT_VERSION})
    set(OARSONG_BLAS_LIBRARY ${OARSONG_BLAS_LIBRARY})
    # Programs find the library where the loader does not look by itself.
    set(OARSONG_RPATH -Wl,-rpath,\\\${libdir})
    if(\${CMAKE_INSTALL_PREFIX} STREQUAL /usr)
        set(OARSONG_RPATH)
    endif()
    configure_file(${CMAKE_SOURCE_DIR}/cmake/oarsong.pc.in
                   ${CMAKE_BINARY_DIR}/oarsong.pc @ONLY)")
install(FILES ${CMAKE_BINARY_DIR}/oarsong.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
