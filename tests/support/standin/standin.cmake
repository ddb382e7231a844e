# A CUDA driver and an NCCL without a GPU, for the tests of folder gpu. Kernels
# are the library's own, compiled for the host; where there is no C++ compiler
# there are no such tests.
if(OARSONG_FUZZ) # whose flags are for one compiler
    return()
endif()
include(CheckLanguage)
check_language(CXX)
if(NOT CMAKE_CXX_COMPILER)
    message(STATUS "tests/gpu: left out: no C++ compiler for the kernels")
    return()
endif()
enable_language(CXX)

set(standin ${CMAKE_CURRENT_SOURCE_DIR}/support/standin)
set(standin_build ${CMAKE_BINARY_DIR}/tests/standin)
file(GLOB standin_kernels CONFIGURE_DEPENDS
    ${CMAKE_SOURCE_DIR}/src/device/cuda/*.cu
    ${CMAKE_SOURCE_DIR}/src/tensor/cuda/*.cu ${standin}/*.cu)
# No host runs these: they are compared with the portable ones on a GPU.
list(FILTER standin_kernels EXCLUDE REGEX "_sm90a\\.cu$")
file(GLOB standin_kernel_headers CONFIGURE_DEPENDS
    ${CMAKE_SOURCE_DIR}/src/device/cuda/*.h
    ${CMAKE_SOURCE_DIR}/src/tensor/cuda/*.h
    ${CMAKE_SOURCE_DIR}/src/tensor/cuda/*.cuh)

# A file that stands for FILE.fatbin, and FILE.cu compiled for the host with a
# list of the kernels in it.
set(standin_kernel_sources "")
set(standin_names "")
foreach(source IN LISTS standin_kernels)
    get_filename_component(name ${source} NAME_WE)
    file(WRITE ${standin_build}/kernels/${name}.fatbin "standin ${name}\n")
    file(CONFIGURE OUTPUT ${standin_build}/${name}_kernels.cc CONTENT
        "#define STANDIN_FILE ${name}\n#include \"standin/kernel_shim.h\"\nSTANDIN_SHARED(${name})\n#include \"${source}\"\n#include \"${name}.names\"\n")
    add_custom_command(OUTPUT ${standin_build}/${name}.names
        COMMAND ${standin}/find-kernels ${CMAKE_CXX_COMPILER}
            ${CMAKE_SOURCE_DIR} ${source} > ${standin_build}/${name}.names
        DEPENDS ${source} ${standin_kernel_headers} ${standin}/find-kernels
            ${standin}/kernel_shim.h
        VERBATIM)
    list(APPEND standin_names ${standin_build}/${name}.names)
    list(APPEND standin_kernel_sources ${standin_build}/${name}_kernels.cc
        ${standin_build}/${name}.names)
endforeach()
add_custom_target(standin_names DEPENDS ${standin_names})

# Has every access to memory looked at (access.cc): of the kernels that are wrong
# on purpose always, and of all kernels in a second library, which is several
# times as slow.
set(standin_looks "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT OARSONG_SANITIZE)
    set(standin_looks -fsanitize=kernel-address --param=asan-stack=0
        --param=asan-globals=0
        --param=asan-instrumentation-with-call-threshold=0 -O1 -g1 -DSTANDIN_LOOKS)
    set_source_files_properties(${standin_build}/probe_block_kernels.cc
        PROPERTIES COMPILE_OPTIONS "${standin_looks}")
endif()

function(oarsong_standin name kind)
    add_library(standin_${name} ${kind} ${ARGN})
    set_target_properties(standin_${name} PROPERTIES
        OUTPUT_NAME standin-${name} C_VISIBILITY_PRESET hidden
        CXX_VISIBILITY_PRESET hidden CXX_STANDARD 17
        POSITION_INDEPENDENT_CODE ON
        LIBRARY_OUTPUT_DIRECTORY ${standin_build})
    target_compile_options(standin_${name} PRIVATE
        -Wno-unknown-pragmas $<$<COMPILE_LANGUAGE:CXX>:-std=c++17>)
    target_include_directories(standin_${name} PRIVATE ${standin_build}
        ${CMAKE_SOURCE_DIR}/tests/support ${CMAKE_SOURCE_DIR}/src
        ${CMAKE_SOURCE_DIR}/include)
    target_link_libraries(standin_${name} PRIVATE oarsong_flags)
    # An older clang assumes that the processor's flags survive an access to a
    # thread-local variable, which they do not in a library that is loaded at
    # run time (LLVM issue 39850). The library itself has no such access.
    if(CMAKE_C_COMPILER_ID STREQUAL "Clang" AND
       CMAKE_C_COMPILER_VERSION VERSION_LESS 17 AND
       CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
        target_compile_options(standin_${name} PRIVATE
            -ftls-model=initial-exec)
    endif()
    if(NOT OARSONG_SANITIZE) # whose runtime the program has
        target_link_options(standin_${name} PRIVATE -Wl,-z,defs)
    endif()
endfunction()

file(GLOB standin_driver CONFIGURE_DEPENDS ${standin}/*.c)
list(FILTER standin_driver EXCLUDE REGEX "/(nccl[a-z_]*|blaslt)\\.c$")
oarsong_standin(driver OBJECT ${standin_driver} ${standin}/access.cc
    ${standin}/block.cc ${standin}/fiber.cc)
oarsong_standin(cuda SHARED $<TARGET_OBJECTS:standin_driver>
    ${standin_kernel_sources})
add_dependencies(standin_cuda standin_names)
file(GLOB standin_nccl CONFIGURE_DEPENDS ${standin}/nccl*.c)
oarsong_standin(nccl SHARED ${standin_nccl})
target_link_libraries(standin_nccl PRIVATE standin_cuda)
oarsong_standin(blaslt SHARED ${standin}/blaslt.c)
target_link_libraries(standin_blaslt PRIVATE standin_cuda)
if(standin_looks) # of the same name: with LD_LIBRARY_PATH it stands for the other
    oarsong_standin(cuda_checked SHARED $<TARGET_OBJECTS:standin_driver>
        ${standin_kernel_sources})
    set_target_properties(standin_cuda_checked PROPERTIES
        OUTPUT_NAME standin-cuda
        LIBRARY_OUTPUT_DIRECTORY ${standin_build}/checked)
    target_compile_options(standin_cuda_checked PRIVATE ${standin_looks})
    add_dependencies(standin_cuda_checked standin_names)
    # Built when a test needs it: `make test` does not.
    set_target_properties(standin_cuda_checked PROPERTIES EXCLUDE_FROM_ALL ON)
    add_test(NAME gpu/checked-library COMMAND ${CMAKE_COMMAND}
        --build ${CMAKE_BINARY_DIR} --target standin_cuda_checked)
    set_tests_properties(gpu/checked-library PROPERTIES TIMEOUT 1200
        LABELS "gpu;checked;extra" FIXTURES_SETUP checked_library)
endif()

# Makes the tests of a folder load the stand-ins instead of the real libraries.
function(oarsong_use_standins folder)
    file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.c)
    foreach(source IN LISTS sources)
        get_filename_component(name ${source} NAME_WE)
        add_dependencies(test_${folder}_${name} standin_cuda
            standin_nccl standin_blaslt)
        set_property(TEST ${folder}/${name} APPEND PROPERTY ENVIRONMENT
            OARSONG_CUDA_LIBRARY=${standin_build}/libstandin-cuda.so
            OARSONG_NCCL_LIBRARY=${standin_build}/libstandin-nccl.so
            OARSONG_CUBLASLT_LIBRARY=${standin_build}/libstandin-blaslt.so
            OARSONG_KERNELS=${standin_build}/kernels
            # Without atexit_sleep_ms=0 each process takes a second.
            TSAN_OPTIONS=atexit_sleep_ms=0:suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp)
    endforeach()
endfunction()

# Runs a test of a folder a second time, with every access of kernels looked at.
# A third argument, nightly: only `ctest -C nightly` runs it.
function(oarsong_check_kernels folder name)
    if(NOT standin_looks)
        return()
    endif()
    get_property(settings TEST ${folder}/${name} PROPERTY ENVIRONMENT)
    list(FILTER settings EXCLUDE REGEX "^OARSONG_CUDA_LIBRARY=")
    add_test(NAME ${folder}/${name}-checked COMMAND test_${folder}_${name}
        CONFIGURATIONS ${ARGN})
    set_tests_properties(${folder}/${name}-checked PROPERTIES TIMEOUT 3600
        LABELS "${folder};checked;extra"
        FIXTURES_REQUIRED checked_library ENVIRONMENT
        "${settings};OARSONG_TEST_SLOWER=10;LD_LIBRARY_PATH=${standin_build}/checked;OARSONG_CUDA_LIBRARY=${standin_build}/checked/libstandin-cuda.so")
endfunction()
