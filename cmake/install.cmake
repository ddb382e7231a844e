# What `make install` puts where, for pkg-config and find_package alike.
include(CMakePackageConfigHelpers)

install(TARGETS oarsong EXPORT oarsongTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS oarsong_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/oarsong DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.h" PATTERN "abi.json")
install(FILES ${CMAKE_BINARY_DIR}/include/oarsong/version.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/oarsong)
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
    configure_file(${CMAKE_SOURCE_DIR}/cmake/oarsong.pc.in
                   ${CMAKE_BINARY_DIR}/oarsong.pc @ONLY)")
install(FILES ${CMAKE_BINARY_DIR}/oarsong.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
