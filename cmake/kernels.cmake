# Kernels for NVIDIA's GPUs: each src/device/cuda/FILE.cu becomes FILE.fatbin in
# the folder oarsong/ beside the library, which loads it when a GPU needs it.
# OARSONG_KERNELS: auto (where nvcc is), on (or the build fails), off. The
# library itself is the same with and without them.
set(OARSONG_KERNELS "auto" CACHE STRING "Kernels for GPUs: auto, on or off")

# Those of these that nvcc knows, and PTX of the last for what comes after it.
set(OARSONG_KERNELS_FOR 75 80 86 90 100)

function(oarsong_kernels_left_out why)
    if("${OARSONG_KERNELS}" STREQUAL "on")
        message(FATAL_ERROR "OARSONG_KERNELS is on, but: ${why}")
    endif()
    message(STATUS "Kernels for GPUs: left out: ${why}")
    set_property(SOURCE ${CMAKE_SOURCE_DIR}/src/device/cuda/kernels.c APPEND
        PROPERTY COMPILE_DEFINITIONS "OARSONG_WITHOUT_KERNELS=\"${why}\"")
endfunction()

# The -gencode options of this nvcc, in result; empty if it does not work.
function(oarsong_kernels_targets result)
    execute_process(COMMAND ${OARSONG_NVCC} --list-gpu-code
        OUTPUT_VARIABLE known ERROR_QUIET)
    set(options "")
    foreach(arch IN LISTS OARSONG_KERNELS_FOR)
        if("${known}" MATCHES "sm_${arch}\n")
            list(APPEND options -gencode arch=compute_${arch},code=sm_${arch})
            set(last ${arch})
        endif()
    endforeach()
    if(options)
        list(APPEND options -gencode arch=compute_${last},code=compute_${last})
    endif()
    set(${result} "${options}" PARENT_SCOPE)
endfunction()

# Results must not depend on whether a multiply and an add are fused.
function(oarsong_kernels_build targets)
    file(GLOB sources CONFIGURE_DEPENDS src/device/cuda/*.cu)
    file(GLOB headers CONFIGURE_DEPENDS src/device/cuda/*.h)
    set(folder ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/oarsong)
    set(images "")
    foreach(source IN LISTS sources)
        get_filename_component(name ${source} NAME_WE)
        set(image ${folder}/${name}.fatbin)
        add_custom_command(OUTPUT ${image}
            COMMAND ${CMAKE_COMMAND} -E make_directory ${folder}
            COMMAND ${OARSONG_NVCC} -fatbin -std=c++17 -O3 -fmad=false
                ${targets} -I${CMAKE_SOURCE_DIR}/include
                -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_BINARY_DIR}/include
                -o ${image} ${source}
            DEPENDS ${source} ${headers} ${CMAKE_SOURCE_DIR}/src/base/half.h
            COMMENT "Building kernels ${name}.fatbin" VERBATIM)
        list(APPEND images ${image})
    endforeach()
    add_custom_target(oarsong_kernels ALL DEPENDS ${images})
    install(FILES ${images} DESTINATION ${CMAKE_INSTALL_LIBDIR}/oarsong)
    message(STATUS "Kernels for GPUs: ${OARSONG_NVCC}")
endfunction()

if("${OARSONG_KERNELS}" STREQUAL "off")
    oarsong_kernels_left_out("OARSONG_KERNELS is off")
else()
    find_program(OARSONG_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin
        PATHS /usr/local/cuda/bin)
    if(NOT OARSONG_NVCC)
        oarsong_kernels_left_out(
            "no nvcc was found (CUDA's toolkit has it, OARSONG_NVCC can name it)")
    else()
        oarsong_kernels_targets(targets)
        if(targets)
            oarsong_kernels_build("${targets}")
        else()
            oarsong_kernels_left_out(
                "${OARSONG_NVCC} knows none of the GPUs that they are for")
        endif()
    endif()
endif()
