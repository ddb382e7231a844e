# The fault and mismatch suites on external engines, reduced; `make nightly` runs
# all of them. The programs are those of the folder fault. Not under tsan, which
# does not see into the engines; MPI keeps memory that sanitizers report as
# leaked.
set(fault_suites fault_mismatch_test fault_scenario_test
    engines_engine_shrink_test)
set_tests_properties(engines/engine_shrink_test PROPERTIES SKIP_RETURN_CODE 77
    LABELS "engines;notsan")
foreach(engine gloo mpi-openmpi mpi-mpich)
    if(NOT TARGET engine_${engine})
        continue()
    endif()
    foreach(suite IN LISTS fault_suites)
        string(REGEX REPLACE "^[a-z]+_(.*)_test$" "\\1" short ${suite})
        set(name engines/${short}-${engine})
        add_dependencies(test_${suite} engine_${engine})
        add_test(NAME ${name} COMMAND test_${suite})
        set_tests_properties(${name} PROPERTIES TIMEOUT 300
            SKIP_RETURN_CODE 77 LABELS "engines;notsan;long"
            ENVIRONMENT "OARSONG_TEST_ENGINE=${engine};OARSONG_BUILD_DIR=${CMAKE_BINARY_DIR};ASAN_OPTIONS=detect_leaks=0")
    endforeach()
endforeach()
