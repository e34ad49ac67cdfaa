# modules.cmake: how a folder of src/ becomes a library and a file of tests/ becomes a test.

# ea_module(NAME SOURCES a.c b.c [DEPS ea_base PkgConfig::x]): the object library ea_NAME. Public headers of the project
# and src/ are on its include path; DEPS are passed on.
function(ea_module name)
    cmake_parse_arguments(arg "" "" "SOURCES;DEPS" ${ARGN})
    add_library(ea_${name} STATIC ${arg_SOURCES})
    target_include_directories(ea_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(ea_${name} PUBLIC ${arg_DEPS})
    target_compile_definitions(ea_${name} PRIVATE _GNU_SOURCE)
    if(name MATCHES "^(base|gguf|server)$")
        target_compile_options(ea_${name} PRIVATE -Wconversion)
    endif()
endfunction()

# ea_test(NAME SOURCES ... DEPS ... LABELS quick unit [TIMEOUT s] [ENV A=B ...]): a cmocka program and its ctest entry.
# EA_SHARED_DATA (environment, default ../shared/data beside the checkout) is where third-party data lies.
function(ea_test name)
    cmake_parse_arguments(arg "" "TIMEOUT" "SOURCES;DEPS;LABELS;ENV;ARGS" ${ARGN})
    add_executable(test_${name} ${arg_SOURCES})
    target_link_libraries(test_${name} PRIVATE ${arg_DEPS} PkgConfig::cmocka)
    target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
    target_compile_definitions(test_${name} PRIVATE _GNU_SOURCE)
    add_test(NAME ${name} COMMAND test_${name} ${arg_ARGS})
    if(NOT arg_TIMEOUT)
        set(arg_TIMEOUT 120)
    endif()
    set_tests_properties(${name} PROPERTIES
        LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} SKIP_RETURN_CODE 77
        ENVIRONMENT "EA_SOURCE_DIR=${PROJECT_SOURCE_DIR};EA_BINARY_DIR=${PROJECT_BINARY_DIR};${arg_ENV}")
endfunction()
