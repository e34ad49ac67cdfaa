# library.cmake: libedgeagent, the shared library for programs in C: the whole engine, of which exactly the functions
# of include/edgeagent.h are visible. The list is read from the header, so that it cannot differ from it.

set(header ${PROJECT_SOURCE_DIR}/include/edgeagent.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
file(READ ${header} text)
string(REPLACE ";" "\n" text "${text}")
string(REGEX MATCHALL "EA_API[^(\n]*[ *\n]ea_[a-z0-9_]+[(]" declarations "${text}")
set(symbols "")
foreach(declaration IN LISTS declarations)
    string(REGEX REPLACE ".*[ *\n](ea_[a-z0-9_]+)[(]$" "\\1" symbol "${declaration}")
    list(APPEND symbols ${symbol})
endforeach()
list(LENGTH symbols n)
if(n LESS 20)
    message(FATAL_ERROR "only ${n} functions were found in ${header}")
endif()

list(JOIN symbols ";\n    " lines)
file(CONFIGURE OUTPUT library/edgeagent.map CONTENT "{\nglobal:\n    ${lines};\nlocal:\n    *;\n};\n")
file(CONFIGURE OUTPUT library/unit.c CONTENT "/* The library's code is in the modules. */\ntypedef int ea_no_code;\n")
list(TRANSFORM symbols PREPEND "LINKER:--undefined=")

add_library(libedgeagent SHARED ${PROJECT_BINARY_DIR}/library/unit.c)
target_include_directories(libedgeagent PUBLIC ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(libedgeagent PRIVATE ea_engine)
target_link_options(libedgeagent PRIVATE
    ${symbols} "LINKER:--version-script=${PROJECT_BINARY_DIR}/library/edgeagent.map")
set_target_properties(libedgeagent PROPERTIES
    OUTPUT_NAME edgeagent VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/library
    LINK_DEPENDS ${PROJECT_BINARY_DIR}/library/edgeagent.map)
