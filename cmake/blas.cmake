# CBLAS: BLIS where it is there, else OpenBLAS, else whatever OARSONG_BLAS
# names. The choice is printed and compiled in, for `oarsong info`.
add_library(oarsong_blas INTERFACE)

# The library's own header first: Debian's alternative may be another's.
function(oarsong_find_blas name folders library)
    list(TRANSFORM folders PREPEND /usr/include/ OUTPUT_VARIABLE own)
    find_path(OARSONG_${name}_INCLUDE cblas.h PATHS ${own} NO_DEFAULT_PATH)
    find_path(OARSONG_${name}_INCLUDE cblas.h PATH_SUFFIXES ${folders})
    find_library(OARSONG_${name}_LIBRARY ${library})
endfunction()

set(arch ${CMAKE_LIBRARY_ARCHITECTURE})
if(OARSONG_BLAS MATCHES "^(auto|blis)$")
    oarsong_find_blas(blis
        "${arch}/blis-serial;${arch}/blis-pthread;${arch}/blis;blis" blis)
endif()
if(OARSONG_BLAS MATCHES "^(auto|openblas)$")
    oarsong_find_blas(openblas
        "${arch}/openblas-serial;${arch}/openblas-pthread;${arch};openblas"
        openblas)
endif()

if(OARSONG_blis_INCLUDE AND OARSONG_blis_LIBRARY)
    set(OARSONG_BLAS_NAME BLIS)
    target_include_directories(oarsong_blas SYSTEM INTERFACE
        ${OARSONG_blis_INCLUDE})
    target_link_libraries(oarsong_blas INTERFACE ${OARSONG_blis_LIBRARY})
elseif(OARSONG_openblas_INCLUDE AND OARSONG_openblas_LIBRARY)
    set(OARSONG_BLAS_NAME OpenBLAS)
    target_include_directories(oarsong_blas SYSTEM INTERFACE
        ${OARSONG_openblas_INCLUDE})
    target_link_libraries(oarsong_blas INTERFACE ${OARSONG_openblas_LIBRARY})
elseif(NOT OARSONG_BLAS MATCHES "^(auto|blis|openblas)$")
    set(OARSONG_BLAS_NAME ${OARSONG_BLAS})
    target_link_libraries(oarsong_blas INTERFACE ${OARSONG_BLAS})
else()
    message(FATAL_ERROR
        "No CBLAS found. Install libblis-serial-dev or libopenblas-dev, "
        "or name one with -DOARSONG_BLAS=library.")
endif()
target_compile_definitions(oarsong_blas INTERFACE
    OARSONG_BLAS_NAME="${OARSONG_BLAS_NAME}")
message(STATUS "CBLAS: ${OARSONG_BLAS_NAME}")
