# UCC, where it was found: its plugin is in the folder of the library, which the
# tests do not load. Elsewhere the test checks that the error gives the reason.
set_tests_properties(engines/ucc_test PROPERTIES LABELS "engines;notsan")
set_property(TEST engines/ucc_test APPEND PROPERTY ENVIRONMENT
    "OARSONG_PLUGIN_PATH=${CMAKE_LIBRARY_OUTPUT_DIRECTORY}")
if(TARGET engine_ucc)
    add_dependencies(test_engines_ucc_test engine_ucc)
    foreach(ranks 2 3)
        add_test(NAME engines/conform-ucc-${ranks} COMMAND oarsong_command
            conform --quick --backend ucc --ranks ${ranks})
        set_tests_properties(engines/conform-ucc-${ranks} PROPERTIES
            TIMEOUT 600 LABELS "engines;notsan;long")
    endforeach()
endif()
