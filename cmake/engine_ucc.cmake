# ucc: the real library, 1.2 or newer (the first with gatherv and scatterv over
# UCX).
find_path(OARSONG_UCC_INCLUDE ucc/api/ucc.h)
find_library(OARSONG_UCC_LIBRARY ucc)
mark_as_advanced(OARSONG_UCC_INCLUDE OARSONG_UCC_LIBRARY)

set(ucc_version "")
if(OARSONG_UCC_INCLUDE AND OARSONG_UCC_LIBRARY)
    file(STRINGS ${OARSONG_UCC_INCLUDE}/ucc/api/ucc_version.h ucc_version
        REGEX "define UCC_VERSION_STRING")
    string(REGEX MATCH "[0-9]+\\.[0-9]+(\\.[0-9]+)?" ucc_version
        "${ucc_version}")
endif()

if(engine_is_off)
    oarsong_engine_left_out(ucc OARSONG_UCC "${engine_is_off}")
elseif(NOT ucc_version)
    oarsong_engine_left_out(ucc OARSONG_UCC
        "no UCC was found then: install libucc-dev (Debian sid has it, Debian 12 does not), or set OARSONG_UCC_INCLUDE and OARSONG_UCC_LIBRARY, and build again")
elseif(ucc_version VERSION_LESS 1.2)
    oarsong_engine_left_out(ucc OARSONG_UCC
        "the UCC found then is ${ucc_version}: install 1.2 or newer (libucc-dev) and build again")
else()
    file(GLOB ucc_sources CONFIGURE_DEPENDS src/backends/ucc/*.c)
    oarsong_engine(ucc SOURCES ${ucc_sources}
        INCLUDES ${OARSONG_UCC_INCLUDE}
        LIBRARIES ${OARSONG_UCC_LIBRARY} ${CMAKE_DL_LIBS})
endif()
