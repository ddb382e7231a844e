# mpi: twice, once for each MPI there is: their ABIs differ, so liboarsong-
# mpi-openmpi.so and liboarsong-mpi-mpich.so are made of the same sources. Each
# is asked of its own compiler wrapper, whatever `mpicc` is here.
file(GLOB OARSONG_MPI_SOURCES CONFIGURE_DEPENDS src/backends/mpi/*.c)

# Includes and libraries as the wrapper gives them: mpi_INCLUDES, mpi_LINK.
function(oarsong_ask_mpi wrapper)
    execute_process(COMMAND ${wrapper} -show OUTPUT_VARIABLE said
        OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    separate_arguments(words UNIX_COMMAND "${said}")
    set(includes "")
    set(link "")
    foreach(word IN LISTS words)
        if(word MATCHES "^-I(.+)")
            list(APPEND includes ${CMAKE_MATCH_1})
        elseif(word MATCHES "^-(L|l|Wl,)")
            list(APPEND link ${word})
        endif()
    endforeach()
    set(mpi_INCLUDES "${includes}" PARENT_SCOPE)
    set(mpi_LINK "${link}" PARENT_SCOPE)
endfunction()

foreach(flavour openmpi mpich)
    if(engine_is_off)
        oarsong_engine_left_out(mpi-${flavour} OARSONG_MPI "${engine_is_off}")
        continue()
    endif()
    find_program(OARSONG_MPICC_${flavour} NAMES mpicc.${flavour})
    if(NOT OARSONG_MPICC_${flavour})
        oarsong_engine_left_out(mpi-${flavour} OARSONG_MPI
            "there is no mpicc.${flavour}: install lib${flavour}-dev")
        continue()
    endif()
    oarsong_ask_mpi(${OARSONG_MPICC_${flavour}})
    oarsong_engine(mpi-${flavour}
        SOURCES ${OARSONG_MPI_SOURCES}
        INCLUDES ${mpi_INCLUDES}
        LIBRARIES ${mpi_LINK}
        OPTIONS -DOARSONG_MPI_NAME="mpi-${flavour}")
endforeach()

# Programs that use MPI themselves: one to compare our layer with, one for the
# tests. oarsong_mpi_program(FLAVOUR FOLDER NAME SOURCE)
function(oarsong_mpi_program flavour folder name source)
    set(target ${name}_${flavour})
    oarsong_ask_mpi(${OARSONG_MPICC_${flavour}})
    add_executable(${target} ${source})
    set_target_properties(${target} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/${folder})
    target_include_directories(${target} SYSTEM PRIVATE ${mpi_INCLUDES})
    target_link_libraries(${target} PRIVATE oarsong oarsong_flags ${mpi_LINK})
endfunction()
add_library(bench_shift MODULE bench/mpi/shift.c)
set_target_properties(bench_shift PROPERTIES PREFIX "" OUTPUT_NAME shift
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
foreach(flavour openmpi mpich)
    if(TARGET engine_mpi-${flavour})
        oarsong_mpi_program(${flavour} bench direct_mpi bench/mpi/direct.c)
        if(OARSONG_TESTS)
            oarsong_mpi_program(${flavour} tests/engines own_mpi
                tests/engines/programs/own_mpi.c)
        endif()
    endif()
endforeach()
