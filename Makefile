# Makefile: the few commands that people type; the build itself is CMake's (CMakePresets.json).

JOBS ?= $(shell nproc)
BUILD := build/release

.PHONY: all setup models demo test test-release test-asan test-tsan test-real check format install clean help

all: build ## build build/release/edgeagent (needs what tools/setup installs)

.PHONY: build
build:
	@cmake --preset release --log-level=WARNING >/dev/null
	@cmake --build --preset release -j $(JOBS)

setup: ## install missing packages, crates and test clients
	@tools/setup

models: ## fetch all real models (1.7 GB)
	@tools/fetch-models all

demo: setup ## build, fetch a small model and play three agents against the server
	@$(MAKE) --no-print-directory build
	@tools/demo --bin $(BUILD)/edgeagent --model "$$(tools/fetch-models smollm2)"

test: setup ## everything that CI runs: release, AddressSanitizer + UBSan, ThreadSanitizer
	@tools/fetch-models smollm2
	@$(MAKE) --no-print-directory test-tsan
	@$(MAKE) --no-print-directory test-asan
	@$(MAKE) --no-print-directory test-release

test-release: build
	ctest --preset release

# The real models run in the release build alone: under a sanitizer they take minutes and show nothing that the tiny
# ones do not.
test-asan:
	@cmake --preset asan --log-level=WARNING >/dev/null
	@cmake --build --preset asan -j $(JOBS)
	ctest --preset asan -LE 'real|checks|slow'

test-tsan:
	@cmake --preset tsan --log-level=WARNING >/dev/null
	@cmake --build --preset tsan -j $(JOBS)
	ctest --preset tsan -L 'engine|http|threads'

test-real: build ## the long tests on the 0.5B and 1.5B models too
	@tools/fetch-models all
	ctest --preset release -L real

check: build ## style and layer checks only
	ctest --preset release -L checks

format: ## run clang-format over all C files
	@git ls-files '*.c' '*.h' | xargs clang-format-14 -i

install: build ## install to PREFIX (default /usr/local)
	cmake --install $(BUILD) --prefix $(or $(PREFIX),/usr/local)

clean:
	rm -rf build ext/target

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24
