# Thin front of CMake: every target is a preset or a script. See `make help`.

PREFIX  ?= /usr/local
DESTDIR ?=
CONFIGURE ?= # for CMake, e.g. -DOARSONG_BLAS=blis; read when a build is new
COMMAND  = build/release/bin/oarsong

.PHONY: all release dev packages packages-to-build demo test test-all conform check asan tsan \
        soak fuzz nightly gpu-check install clean help
.NOTPARALLEL: # the targets of one run go in order; Ninja is parallel inside

all: release

help:
	@echo 'make            build/release/bin/oarsong and build/release/examples/*'
	@echo 'make demo       install what is missing, build, train a GPT on four ranks'
	@echo 'make test       install what is missing, build, run the tests'
	@echo 'make test-all   the same with the long ones: what CI runs'
	@echo 'make conform    every operation on every backend, 1 to 8 ranks; long'
	@echo 'make soak       a million mixed operations on 8 ranks, over shm and tcp'
	@echo 'make fuzz       every reader of bytes from outside, FUZZ_SECONDS=600 each'
	@echo 'make check      layers, headers, exports, ABI, format, lint'
	@echo 'make asan       the tests with the address and undefined sanitizers'
	@echo 'make tsan       the tests with the thread sanitizer'
	@echo 'make dev        an unoptimised build in build/dev'
	@echo 'make gpu-check  on a machine with GPUs: tests, every engine, figures; KEEP=FILE'
	@echo 'make nightly    what takes too long for CI; logs in build/nightly/'
	@echo 'make install    PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)'
	@echo 'make clean      removes build/'

packages:
	@scripts/install-packages

packages-to-build:
	@scripts/install-packages --build

# Ninja runs CMake again by itself when a CMake file changes.
build/%/build.ninja:
	cmake --preset $* $(CONFIGURE)

release dev: %: build/%/build.ninja
	cmake --build build/$*

demo: packages-to-build build/release/build.ninja
	cmake --build build/release --target oarsong_command examples_ddp_gpt
	rm -rf build/demo
	$(COMMAND) run -n 4 --trace build/demo build/release/examples/ddp_gpt
	@echo 'What each rank did:'
	@$(COMMAND) report build/demo -o build/demo/report.html

test: packages build/release/build.ninja
	cmake --build build/release --target oarsong_tested
	scripts/run-tests release --short

test-all: packages release
	scripts/run-tests release

conform: packages release
	scripts/run-conform

soak: packages release
	scripts/soak

fuzz:
	@scripts/install-packages --check
	scripts/fuzz

asan tsan: %: packages build/%/build.ninja
	cmake --build build/$*
	scripts/run-tests $*

check:
	@scripts/install-packages --check
	@$(MAKE) --no-print-directory release
	scripts/run-checks

nightly:
	@scripts/install-packages --nightly
	scripts/nightly

# BUILD=dir: that build, as it is.
gpu-check:
	scripts/gpu-check

install: build/release/build.ninja
	cmake --build build/release --target oarsong_installed
	DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(PREFIX)"
	@test -n "$(DESTDIR)" || ldconfig 2>/dev/null || true

clean:
	rm -rf build
