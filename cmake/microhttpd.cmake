# The live page of `oarsong run --web`: GNU libmicrohttpd, where it is installed.
option(OARSONG_WEB "the live page of oarsong run --web, if libmicrohttpd is there"
    ON)
find_path(OARSONG_MICROHTTPD_INCLUDE microhttpd.h)
find_library(OARSONG_MICROHTTPD_LIBRARY microhttpd)
if(OARSONG_WEB AND OARSONG_MICROHTTPD_INCLUDE AND OARSONG_MICROHTTPD_LIBRARY)
    target_compile_definitions(oarsong_command PRIVATE OARSONG_WITH_WEB)
    target_include_directories(oarsong_command SYSTEM PRIVATE
        ${OARSONG_MICROHTTPD_INCLUDE})
    target_link_libraries(oarsong_command PRIVATE
        ${OARSONG_MICROHTTPD_LIBRARY} oarsong_jansson)
    message(STATUS "Live page: ${OARSONG_MICROHTTPD_LIBRARY}")
    # The page, as a string.
    file(READ tools/web/live.html page)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
        ${CMAKE_SOURCE_DIR}/tools/web/live.html)
    string(REPLACE "\\" "\\\\" page "${page}")
    string(REPLACE "\"" "\\\"" page "${page}")
    string(REPLACE "\n" "\\n\"\n\"" page "${page}")
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/web_page.c CONTENT
        "#include \"web/web.h\"\nconst char web_page[] =\n\"@page@\";\n" @ONLY)
    target_sources(oarsong_command PRIVATE ${CMAKE_BINARY_DIR}/web_page.c)
else()
    set_source_files_properties(tools/web/web_serve.c tools/web/web_state.c
        tools/web/web_metrics.c PROPERTIES HEADER_FILE_ONLY ON)
    message(STATUS "Live page: left out: install libmicrohttpd-dev for it")
endif()
