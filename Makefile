# make demo, make test: everything from a fresh checkout. See make help.
VENV ?= .venv
TORCH ?= torch
PYTHON ?= python3
BUILD ?= build/$(notdir $(VENV))

python := $(VENV)/bin/python
# One stamp for what TORCH asks for, so that another TORCH in the same VENV installs and builds again.
ready := $(VENV)/.ready-$(shell printf %s '$(TORCH)' | tr -c 'a-zA-Z0-9.' _)
jobs := $(shell nproc)
torch_dir = $(shell $(python) -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])")
generator := $(if $(shell command -v ninja),-G Ninja)
configure = mkdir -p $(BUILD) && cmake -S . -B $(BUILD) $(if $(wildcard $(BUILD)/CMakeCache.txt),,$(generator)) -DTORCH_DIR=$(torch_dir) \
  $(if $(TORCH_EXT_CUDA),-DTORCH_EXT_CUDA=$(TORCH_EXT_CUDA))

comma := ,
hash := \#
# $(call system,PROBE,PACKAGES,WHAT): where PROBE fails, installs Debian's PACKAGES if it may, and else says how.
system = @if $1 >/dev/null 2>&1; then :; \
  elif command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then apt-get update -qq && apt-get install -y -qq $2; \
  elif command -v apt-get >/dev/null && sudo -n true 2>/dev/null; then sudo apt-get update -qq && sudo apt-get install -y -qq $2; \
  else echo "$3 missing; on Debian and Ubuntu: sudo apt-get install $2" >&2; exit 1; fi

.PHONY: help venv library demo test test-cpp test-python test-packaging sanitize bench gpu clean

help:
	@echo "make demo     set-up, build, then train an autoencoder and run its decoder in C++ without Python"
	@echo "make test     set-up, build, and every test and example"
	@echo "make venv     set-up alone: $(VENV) with torch, the package and the test tools"
	@echo "make bench    the benchmark against torch (and onnxruntime, openvino, jax, where installed)"
	@echo "make gpu      on a machine with a GPU: builds, runs the device tests and measures against torch's cuDNN"
	@echo "make clean    removes builds and environments"
	@echo "Variables: VENV (.venv), TORCH (what pip installs, torch or torch==2.11.0), PYTHON (python3),"
	@echo "           TORCH_EXT_CUDA (CUDA kernels: auto where nvcc is found, 0, 1)"

# ---- Set-up ----
$(ready): pyproject.toml setup.py build_support/backend.py
	$(call system,$(PYTHON) -c "import venv$(comma) ensurepip",python3-venv,$(PYTHON)'s modules venv and ensurepip are)
	$(call system,command -v $${CXX:-c++},g++,A C++20 compiler is)
	$(call system,command -v cmake,cmake,CMake is)
	test -x $(python) || $(PYTHON) -m venv $(VENV)
	$(python) -m pip install --quiet "setuptools>=77" wheel "$(TORCH)"
	TORCH_EXT_BUILD=$(abspath $(BUILD)) $(python) -m pip install --quiet --no-build-isolation --editable ".[test]"
	rm -f $(VENV)/.ready-*
	touch $@

venv: library
	@echo "ready: $(VENV)"

# Always asked for and quick when nothing changed; it also puts back the library of this VENV where another one was built last.
library: $(ready)
	@$(configure) -DTORCH_EXT_EXAMPLES=ON > $(BUILD)/configure.log || { cat $(BUILD)/configure.log; exit 1; }
	@cmake --build $(BUILD) --parallel $(jobs)
	@cmake --install $(BUILD) --component python --prefix torch_ext > /dev/null

# ---- The main job ----
demo: library
	$(python) examples/digits_autoencoder.py --runner $(BUILD)/examples/run_decoder
	@echo "make demo: succeeded"

# ---- Tests ----
test: test-cpp test-python test-packaging sanitize
	@echo "make test: succeeded"

# $(call run_ctest,DIRECTORY): its tests, then why some were skipped, each reason once; ctest says only which.
run_ctest = ctest --test-dir $1 --parallel $(jobs) --output-on-failure --progress && \
  { grep -A1 ': Skipped$$' $1/Testing/Temporary/LastTest.log | grep -v -e ': Skipped$$' -e '^--$$' | sort | uniq -c | sed 's/^/skipped:/'; true; }

.PHONY: googletest
googletest:
	$(call system,printf '%s\n' '$(hash)include <gtest/gtest.h>' '$(hash)include <benchmark/benchmark.h>' | $${CXX:-c++} -x c++ -E -,\
	  libgtest-dev libbenchmark-dev,GoogleTest or Google Benchmark is)

test-cpp: googletest library
	$(configure) -DTORCH_EXT_TESTS=ON -DTORCH_EXT_BENCHMARKS=ON > $(BUILD)/configure.log
	cmake --build $(BUILD) --parallel $(jobs)
	$(call run_ctest,$(BUILD))

test-python: test-cpp
	TORCH_EXT_BUILD=$(abspath $(BUILD)) $(python) -m pytest -n auto --maxprocesses 4 --dist worksteal

test-packaging: library
	$(python) tests/packaging/check.py --build $(BUILD)

# The C++ tests again under the address and undefined behaviour sanitizers.
sanitize: googletest
	cmake -S . -B build/sanitize $(if $(wildcard build/sanitize/CMakeCache.txt),,$(generator)) \
	  -DTORCH_EXT_TORCH=OFF -DTORCH_EXT_CUDA=0 -DTORCH_EXT_TESTS=ON -DTORCH_EXT_SANITIZE=ON > /dev/null
	cmake --build build/sanitize --parallel $(jobs)
	$(call run_ctest,build/sanitize)

bench: library
	$(python) -m benchmarks

# Without set-up, so that it needs no network: the Python of VENV where there is one, else PYTHON, with the torch that it has.
gpu:
	$(if $(wildcard $(python)),$(python),$(PYTHON)) -m benchmarks.gpu

clean:
	rm -rf build dist *.egg-info .venv .venv-* torch_ext/lib examples/out benchmarks/out
