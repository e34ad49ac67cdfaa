# flags.cmake: compiler and linker flags for everything. Instruction-set flags are set by src/kernel alone.

add_compile_options(
    -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef -Wpointer-arith
    -Wwrite-strings -Wformat=2 -Wimplicit-fallthrough -Wno-overlength-strings
    # FMA is written where it is meant; contraction would make results depend on the compiler.
    -ffp-contract=off -fno-math-errno
    -fvisibility=hidden
    -fstack-protector-strong)
if(EA_WERROR)
    add_compile_options(-Werror)
endif()
if(CMAKE_BUILD_TYPE MATCHES "Release|RelWithDebInfo" AND NOT EA_SANITIZE)
    add_compile_definitions(_FORTIFY_SOURCE=2)
endif()
if(EA_SANITIZE)
    add_compile_options(-fsanitize=${EA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${EA_SANITIZE})
endif()
if(EA_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link) # coverage for libFuzzer in all code; fuzz/ links its driver
endif()
add_link_options(-Wl,-z,relro,-z,now)
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)
