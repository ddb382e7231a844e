# Kernels for NVIDIA's GPUs: each FILE.cu of src/device/cuda and src/tensor/cuda
# becomes FILE.fatbin in the folder oarsong/ beside the library, which loads it
# when a GPU needs it. OARSONG_KERNELS: auto (where nvcc is), on (or the build
# fails), off. The library itself is the same with and without them, and no
# other target waits for them.
set(OARSONG_KERNELS "auto" CACHE STRING "Kernels for GPUs: auto, on or off")

# Those of these that nvcc knows, and PTX of the last for what comes after it.
# Kernels of collectives are for every GPU that runs CUDA 13; those for training
# use what came with sm_80, and each further target costs time of the build. A
# file FILE_sm90a.cu is for that target alone.
set(OARSONG_KERNELS_FOR_device 75 80 90 100)
set(OARSONG_KERNELS_FOR_tensor 80 90)

# The results of a collective must not depend on whether a multiply and an add
# are fused; training kernels gain by it.
set(OARSONG_KERNELS_FLAGS_device -fmad=false)
set(OARSONG_KERNELS_FLAGS_tensor -fmad=true)

function(oarsong_kernels_left_out why)
    if("${OARSONG_KERNELS}" STREQUAL "on")
        message(FATAL_ERROR "OARSONG_KERNELS is on, but: ${why}")
    endif()
    message(STATUS "Kernels for GPUs: left out: ${why}")
    set_property(SOURCE ${CMAKE_SOURCE_DIR}/src/device/cuda/kernels.c APPEND
        PROPERTY COMPILE_DEFINITIONS "OARSONG_WITHOUT_KERNELS=\"${why}\"")
endfunction()

# The -gencode options of this nvcc for those targets, in result; empty if it
# knows none of them.
function(oarsong_kernels_targets result)
    set(options "")
    foreach(arch IN LISTS ARGN)
        if("${OARSONG_KERNELS_KNOWN}" MATCHES "sm_${arch}\n")
            list(APPEND options -gencode arch=compute_${arch},code=sm_${arch})
            set(last ${arch})
        endif()
    endforeach()
    if(options)
        list(APPEND options -gencode arch=compute_${last},code=compute_${last})
    endif()
    set(${result} "${options}" PARENT_SCOPE)
endfunction()

# Adds what builds the files of src/FOLDER/cuda; their images are added to the
# list OARSONG_KERNELS_IMAGES.
function(oarsong_kernels_folder folder)
    file(GLOB sources CONFIGURE_DEPENDS src/${folder}/cuda/*.cu)
    file(GLOB headers CONFIGURE_DEPENDS src/device/cuda/*.h
        src/${folder}/cuda/*.h src/${folder}/cuda/*.cuh)
    set(to ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/oarsong)
    set(images ${OARSONG_KERNELS_IMAGES})
    foreach(source IN LISTS sources)
        get_filename_component(name ${source} NAME_WE)
        set(image ${to}/${name}.fatbin)
        if("${image}" IN_LIST images)
            message(FATAL_ERROR "Two files of kernels are called ${name}.cu")
        endif()
        if("${name}" MATCHES "_sm90a$")
            if(NOT "${OARSONG_KERNELS_KNOWN}" MATCHES "sm_90\n")
                continue()
            endif()
            set(targets -gencode arch=compute_90a,code=sm_90a)
        else()
            oarsong_kernels_targets(targets ${OARSONG_KERNELS_FOR_${folder}})
        endif()
        add_custom_command(OUTPUT ${image}
            COMMAND ${CMAKE_COMMAND} -E make_directory ${to}
            COMMAND ${OARSONG_NVCC} -fatbin -std=c++17 -O3
                ${OARSONG_KERNELS_FLAGS_${folder}}
                ${targets} -I${CMAKE_SOURCE_DIR}/include
                -I${CMAKE_SOURCE_DIR}/src -I${CMAKE_BINARY_DIR}/include
                -o ${image} ${source}
            DEPENDS ${source} ${headers} ${CMAKE_SOURCE_DIR}/src/base/half.h
            COMMENT "Building kernels ${name}.fatbin" VERBATIM)
        list(APPEND images ${image})
    endforeach()
    set(OARSONG_KERNELS_IMAGES "${images}" PARENT_SCOPE)
endfunction()

function(oarsong_kernels_build)
    oarsong_kernels_folder(device)
    oarsong_kernels_folder(tensor)
    add_custom_target(oarsong_kernels ALL DEPENDS ${OARSONG_KERNELS_IMAGES})
    install(FILES ${OARSONG_KERNELS_IMAGES}
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/oarsong)
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
        execute_process(COMMAND ${OARSONG_NVCC} --list-gpu-code
            OUTPUT_VARIABLE OARSONG_KERNELS_KNOWN ERROR_QUIET)
        oarsong_kernels_targets(targets ${OARSONG_KERNELS_FOR_tensor})
        if(targets)
            oarsong_kernels_build()
        else()
            oarsong_kernels_left_out(
                "${OARSONG_NVCC} knows none of the GPUs that they are for")
        endif()
    endif()
endif()
