# CBLAS, by measured speed: OpenBLAS first on x86-64, BLIS first elsewhere; or
# what OARSONG_BLAS names. A library that reads beyond its operands is passed
# over. The choice is printed and compiled in, for `oarsong info`.
add_library(oarsong_blas INTERFACE)

# The library's own header first: Debian's alternative may be another's.
function(oarsong_find_blas name folders library)
    list(TRANSFORM folders PREPEND /usr/include/ OUTPUT_VARIABLE own)
    find_path(OARSONG_${name}_INCLUDE cblas.h PATHS ${own} NO_DEFAULT_PATH)
    find_path(OARSONG_${name}_INCLUDE cblas.h PATH_SUFFIXES ${folders})
    find_library(OARSONG_${name}_LIBRARY ${library})
endfunction()

# Runs cmake/blas_guard.c: products whose operands end at a page that cannot be
# read. BLIS 0.9 on x86-64 fails it (flame/blis#821).
function(oarsong_check_blas name)
    if(DEFINED OARSONG_${name}_STAYS_INSIDE)
        return()
    endif()
    set(inside ON)
    if(NOT CMAKE_CROSSCOMPILING)
        try_run(status compiled ${CMAKE_BINARY_DIR}/blas_guard_${name}
            ${CMAKE_SOURCE_DIR}/cmake/blas_guard.c
            CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${OARSONG_${name}_INCLUDE}"
            LINK_LIBRARIES ${OARSONG_${name}_LIBRARY})
        if(NOT compiled OR NOT status EQUAL 0)
            set(inside OFF)
        endif()
    endif()
    set(OARSONG_${name}_STAYS_INSIDE ${inside} CACHE INTERNAL "")
endfunction()

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(order openblas blis)
else()
    set(order blis openblas)
endif()
set(arch ${CMAKE_LIBRARY_ARCHITECTURE})
set(folders_openblas
    ${arch}/openblas-pthread ${arch}/openblas-serial ${arch} openblas)
set(folders_blis ${arch}/blis-serial ${arch}/blis-pthread ${arch}/blis blis)
set(title_openblas OpenBLAS)
set(title_blis BLIS)

set(OARSONG_BLAS_NAME "")
set(OARSONG_BLAS_STAYS_INSIDE ON)
if(OARSONG_BLAS STREQUAL auto)
    set(candidates ${order})
elseif(OARSONG_BLAS MATCHES "^(blis|openblas)$")
    set(candidates ${OARSONG_BLAS})
else()
    set(candidates "")
    set(OARSONG_BLAS_NAME ${OARSONG_BLAS})
    set(OARSONG_BLAS_LIBRARY ${OARSONG_BLAS})
endif()
foreach(name IN LISTS candidates)
    oarsong_find_blas(${name} "${folders_${name}}" ${name})
    if(OARSONG_BLAS_NAME OR NOT OARSONG_${name}_INCLUDE OR
       NOT OARSONG_${name}_LIBRARY)
        continue()
    endif()
    oarsong_check_blas(${name})
    if(NOT OARSONG_${name}_STAYS_INSIDE)
        message(WARNING "${title_${name}} (${OARSONG_${name}_LIBRARY}) reads "
            "beyond its operands or cannot be linked: see cmake/blas_guard.c")
        if(OARSONG_BLAS STREQUAL auto)
            continue()
        endif()
    endif()
    set(OARSONG_BLAS_NAME ${title_${name}})
    set(OARSONG_BLAS_STAYS_INSIDE ${OARSONG_${name}_STAYS_INSIDE})
    target_include_directories(oarsong_blas SYSTEM INTERFACE
        ${OARSONG_${name}_INCLUDE})
    set(OARSONG_BLAS_LIBRARY ${OARSONG_${name}_LIBRARY})
endforeach()
if(NOT OARSONG_BLAS_NAME)
    message(FATAL_ERROR
        "No CBLAS found. Install libopenblas-pthread-dev or libblis-serial-dev, "
        "or name one with -DOARSONG_BLAS=library.")
endif()
target_link_libraries(oarsong_blas INTERFACE ${OARSONG_BLAS_LIBRARY})
target_compile_definitions(oarsong_blas INTERFACE
    OARSONG_BLAS_NAME="${OARSONG_BLAS_NAME}"
    OARSONG_BLAS_STAYS_INSIDE=$<BOOL:${OARSONG_BLAS_STAYS_INSIDE}>)
message(STATUS "CBLAS: ${OARSONG_BLAS_NAME}")
