# The backend gloo. Not under tsan, which does not see into the library.
set_tests_properties(engines/gloo_test PROPERTIES SKIP_RETURN_CODE 77
    LABELS "engines;notsan;long")
if(TARGET engine_gloo)
    foreach(ranks 2 3 4 8)
        add_test(NAME engines/conform-gloo-${ranks} COMMAND oarsong_command conform
            --quick --dtype f32 --backend gloo --ranks ${ranks})
        set_tests_properties(engines/conform-gloo-${ranks} PROPERTIES TIMEOUT 300
            LABELS "engines;notsan;long")
    endforeach()
    add_dependencies(test_engines_gloo_test engine_gloo)
endif()
