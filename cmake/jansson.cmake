# JSON: Jansson.
find_path(OARSONG_JANSSON_INCLUDE jansson.h)
find_library(OARSONG_JANSSON_LIBRARY jansson)
if(NOT OARSONG_JANSSON_INCLUDE OR NOT OARSONG_JANSSON_LIBRARY)
    message(FATAL_ERROR "No Jansson found. Install libjansson-dev.")
endif()
add_library(oarsong_jansson INTERFACE)
target_include_directories(oarsong_jansson SYSTEM INTERFACE
    ${OARSONG_JANSSON_INCLUDE})
target_link_libraries(oarsong_jansson INTERFACE ${OARSONG_JANSSON_LIBRARY})
