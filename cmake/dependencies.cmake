# dependencies.cmake: system libraries, found by pkg-config. `tools/setup` installs them; nothing is downloaded here.

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
foreach(dep IN ITEMS libmicrohttpd jansson libpcre2-8 libutf8proc libxxhash hwloc)
    string(REGEX REPLACE "[^a-z0-9]" "_" name ${dep})
    pkg_check_modules(${name} REQUIRED IMPORTED_TARGET ${dep})
endforeach()
if(EA_TESTS)
    pkg_check_modules(cmocka REQUIRED IMPORTED_TARGET cmocka)
endif()
