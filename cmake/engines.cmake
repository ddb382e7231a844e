# Engines of others, each a plugin of its own: auto (if its library is there),
# on (or the build fails), off. cmake/engine_NAME.cmake looks for one.
set(OARSONG_MPI "auto" CACHE STRING "Backend mpi: auto, on or off")
set(OARSONG_GLOO "auto" CACHE STRING "Backend gloo: auto, on or off")
set(OARSONG_UCC "auto" CACHE STRING "Backend ucc: auto, on or off")

# oarsong_engine(FILE SOURCES ... [INCLUDES ...] [LIBRARIES ...] [OPTIONS ...])
# makes liboarsong-FILE.so out of the sources, beside the library.
function(oarsong_engine file)
    cmake_parse_arguments(E "" "" "SOURCES;INCLUDES;LIBRARIES;OPTIONS" ${ARGN})
    add_library(engine_${file} MODULE ${E_SOURCES})
    set_target_properties(engine_${file} PROPERTIES
        OUTPUT_NAME oarsong-${file}
        BUILD_RPATH_USE_ORIGIN ON INSTALL_RPATH $ORIGIN/..)
    target_include_directories(engine_${file} PRIVATE src)
    target_include_directories(engine_${file} SYSTEM PRIVATE ${E_INCLUDES})
    target_compile_options(engine_${file} PRIVATE ${E_OPTIONS})
    target_link_libraries(engine_${file} PRIVATE oarsong oarsong_flags
        ${E_LIBRARIES})
    install(TARGETS engine_${file}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/oarsong)
    set_property(GLOBAL APPEND PROPERTY OARSONG_ENGINES engine_${file})
    message(STATUS "Engine ${file}: ${E_LIBRARIES}")
endfunction()

# oarsong_engine_left_out(FILE OPTION "why, and what to install"): says so here
# and in `oarsong info`; an error where OPTION is on.
function(oarsong_engine_left_out file option why)
    if("${${option}}" STREQUAL "on")
        message(FATAL_ERROR "${option} is on, but: ${why}")
    endif()
    message(STATUS "Engine ${file}: left out: ${why}")
    string(REPLACE ";" "," why "${why}") # or it would be a list
    string(TOUPPER "OARSONG_WITHOUT_${file}" name)
    string(REPLACE "-" "_" name ${name})
    set_property(SOURCE ${CMAKE_SOURCE_DIR}/src/backends/registry/engines.c APPEND PROPERTY
        COMPILE_DEFINITIONS "${name}=\"${why}\"")
endfunction()

foreach(engine IN LISTS OARSONG_PLUGINS)
    string(TOUPPER OARSONG_${engine} option)
    if("${${option}}" STREQUAL "off")
        set(engine_is_off "${option} is off")
    elseif(NOT IS_DIRECTORY ${CMAKE_SOURCE_DIR}/src/backends/${engine})
        set(engine_is_off "this tree has no src/backends/${engine}")
    else()
        set(engine_is_off "")
    endif()
    include(cmake/engine_${engine}.cmake)
endforeach()
