# real.cmake: real models against recordings of llama.cpp. The 135M model is fetched for every test run; the larger ones
# are tested where tools/fetch-models brought them.
add_executable(test_real test_real.c)
target_link_libraries(test_real PRIVATE ea_engine PkgConfig::cmocka PkgConfig::jansson m)
target_include_directories(test_real PRIVATE ${PROJECT_SOURCE_DIR}/tests)
target_compile_definitions(test_real PRIVATE _GNU_SOURCE)
foreach(pair IN ITEMS "smollm2=SmolLM2-135M-Instruct.Q4_1.gguf" "coder-0.5b=qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
        "coder-1.5b=qwen2.5-coder-1.5b-instruct-q4_k_m.gguf")
    string(REGEX MATCH "^(.*)=(.*)$" _ ${pair})
    add_test(NAME real-greedy-${CMAKE_MATCH_1}
        COMMAND test_real ${CMAKE_MATCH_2} ${CMAKE_CURRENT_SOURCE_DIR}/real/${CMAKE_MATCH_1}.json)
    add_test(NAME real-perplexity-${CMAKE_MATCH_1}
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/real/perplexity.py $<TARGET_FILE:edgeagent>
                ${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
    set_tests_properties(real-greedy-${CMAKE_MATCH_1} real-perplexity-${CMAKE_MATCH_1} PROPERTIES
        LABELS real TIMEOUT 900 SKIP_RETURN_CODE 77 RUN_SERIAL ON
        ENVIRONMENT "EA_SOURCE_DIR=${PROJECT_SOURCE_DIR}")
endforeach()
