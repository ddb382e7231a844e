# gloo: the real library, through one C++ file.
include(CheckLanguage)
check_language(CXX)
find_path(OARSONG_GLOO_INCLUDE gloo/rendezvous/context.h)
find_library(OARSONG_GLOO_LIBRARY gloo)
mark_as_advanced(OARSONG_GLOO_INCLUDE OARSONG_GLOO_LIBRARY)
if(engine_is_off)
    oarsong_engine_left_out(gloo OARSONG_GLOO "${engine_is_off}")
elseif(NOT CMAKE_CXX_COMPILER)
    oarsong_engine_left_out(gloo OARSONG_GLOO
        "there was no C++ compiler; install g++ and build again")
elseif(NOT OARSONG_GLOO_INCLUDE OR NOT OARSONG_GLOO_LIBRARY)
    oarsong_engine_left_out(gloo OARSONG_GLOO
        "Gloo was not found; install libgloo-dev and build again")
else()
    enable_language(CXX)
    file(GLOB sources CONFIGURE_DEPENDS src/backends/gloo/*.c
        src/backends/gloo/*.cc)
    oarsong_engine(gloo SOURCES ${sources}
        INCLUDES ${OARSONG_GLOO_INCLUDE} LIBRARIES ${OARSONG_GLOO_LIBRARY}
        OPTIONS $<$<COMPILE_LANGUAGE:CXX>:-std=c++17>)
endif()
