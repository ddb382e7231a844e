# Compiler flags for our own code; consumers see none of them.
find_package(Threads REQUIRED)
add_library(oarsong_flags INTERFACE)
target_compile_options(oarsong_flags INTERFACE
    -Wall -Wextra -Wshadow -Wpointer-arith -Wcast-qual -Wvla
    -Wno-unused-parameter
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes$<SEMICOLON>-Wmissing-prototypes>)
# In loops over a few bytes that it unrolls, gcc 12 on x86-64 takes the element
# behind the end for one that is written.
if(CMAKE_C_COMPILER_ID STREQUAL GNU)
    target_compile_options(oarsong_flags INTERFACE -Wno-stringop-overflow)
endif()
# Results must not depend on whether a compiler fuses a multiply and an add.
target_compile_options(oarsong_flags INTERFACE -ffp-contract=off)
# Nobody reads errno or the exception flags after arithmetic; without them
# compilers can make vectors of square roots and comparisons. No result changes.
target_compile_options(oarsong_flags INTERFACE
    -fno-math-errno -fno-trapping-math)
target_compile_definitions(oarsong_flags INTERFACE _GNU_SOURCE)
target_link_libraries(oarsong_flags INTERFACE
    Threads::Threads ${CMAKE_DL_LIBS} m)
if(OARSONG_WERROR)
    target_compile_options(oarsong_flags INTERFACE -Werror)
endif()
if(OARSONG_SANITIZE)
    target_compile_options(oarsong_flags INTERFACE
        -fsanitize=${OARSONG_SANITIZE} -fno-omit-frame-pointer
        -fno-sanitize-recover=all)
    target_link_options(oarsong_flags INTERFACE
        -fsanitize=${OARSONG_SANITIZE})
endif()
if(OARSONG_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES Clang)
        message(FATAL_ERROR "OARSONG_FUZZ needs clang: -DCMAKE_C_COMPILER=clang")
    endif()
    target_compile_options(oarsong_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
