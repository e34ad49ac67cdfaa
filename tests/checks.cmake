# checks.cmake: style and structure checks as tests. Each names what it found and how to fix it.
foreach(check IN ITEMS layers text format)
    add_test(NAME check-${check} COMMAND ${PROJECT_SOURCE_DIR}/tools/check-${check})
    set_tests_properties(check-${check} PROPERTIES LABELS "quick;checks" SKIP_RETURN_CODE 77)
endforeach()
if(NOT EA_SANITIZE)
    add_test(NAME check-symbols COMMAND ${PROJECT_SOURCE_DIR}/tools/check-symbols ${PROJECT_BINARY_DIR})
    set_tests_properties(check-symbols PROPERTIES LABELS "quick;checks")
endif()
