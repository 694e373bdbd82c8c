# Every target creates .venv and installs what it needs on first use.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
JOBS ?= $(shell $(PYTHON) -c "import os; print(os.cpu_count() or 1)")
FUZZ_SECONDS ?= 60
CLANGXX ?= clang++
DEMO_FLAGS ?=
BENCH_FLAGS ?=
CHAOS_FLAGS ?=

VENV := .venv
BIN := $(VENV)/bin
EXTENSION := build/editable-$(shell $(PYTHON) -c "import sys; print(sys.implementation.cache_tag)")
STAMPS := $(VENV)/stamps
PIP := $(BIN)/python -m pip --disable-pip-version-check
CMAKE := $(BIN)/cmake
CTEST := $(BIN)/ctest --output-on-failure --no-tests=error -j $(JOBS)
# One process more than cores, because many tests wait for processes that they start.
PYTEST := $(BIN)/python -m pytest -q -n $(shell expr $(JOBS) + 1) --dist loadfile
CONFIGURE := $(CMAKE) -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja

NATIVE := CMakeLists.txt $(shell find core bindings -name "*.h" -o -name "*.cc" -o -name CMakeLists.txt)
CXX_FILES = $(shell find core bindings -name '*.h' -o -name '*.cc')
PYTHON_DIRS := $(wildcard src tests examples bench scripts)

# ThreadSanitizer needs a memory layout that newer kernels randomize away; turn that off where the
# system allows it.
SETARCH := $(shell setarch -R true 2>/dev/null && echo setarch -R)

.PHONY: help
help:  ## Show this list
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 18

$(STAMPS)/tools: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt scikit-build-core nanobind cmake ninja typing_extensions
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/requirements: $(STAMPS)/tools pyproject.toml
	$(BIN)/python scripts/print_requirements.py dev > $(STAMPS)/requirements.txt
	$(PIP) install -q -c constraints.txt -r $(STAMPS)/requirements.txt
	touch $@

# An editable install: Python files are used in place, and the extension is rebuilt incrementally
# when a native file is newer than the stamp.
$(STAMPS)/package: $(STAMPS)/requirements $(NATIVE)
	$(PIP) install -q --no-deps --no-build-isolation -e .
	$(BIN)/python scripts/copy_stub.py build/stubs
	touch $@

.PHONY: install
install: $(STAMPS)/package  ## Create .venv with the package and its tools

# Workers start their own threads: torch's pool would only compete with the other processes.
.PHONY: demo
demo: $(STAMPS)/package  ## Train a click model on 2 servers x 2 workers and show its AUC
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE \
	  $(BIN)/sparsefleet launch --servers 2 --workers 2 --native-servers --log-dir build/demo/logs \
	  --show worker.0 examples/ctr_dnn.py --mode async $(DEMO_FLAGS)

.PHONY: test
test: test-native test-python  ## Run the C++ and the Python tests

# In the extension's build directory, so that core/ is compiled once and tested as it is used.
.PHONY: test-native
test-native: $(STAMPS)/package  ## Run the C++ tests
	$(CMAKE) -S . -B $(EXTENSION) -DSPARSEFLEET_TESTS=ON
	$(CMAKE) --build $(EXTENSION) -j $(JOBS) --target core_tests
	$(CTEST) --test-dir $(EXTENSION)/core

.PHONY: test-python
test-python: $(STAMPS)/package  ## Run the Python tests
	$(PYTEST) -m "not job and not slow"

.PHONY: test-jobs
test-jobs: $(STAMPS)/package  ## Run the Python tests that start more jobs
	$(PYTEST) -m "job and not slow"

# What failed in the last run, one test at a time: does it fail without others beside it?
.PHONY: test-native-failed test-python-failed test-jobs-failed
test-native-failed: $(STAMPS)/package  ## Run the C++ tests that failed last time, one by one
	$(CTEST) -j 1 --rerun-failed --test-dir $(EXTENSION)/core
test-python-failed: $(STAMPS)/package  ## Run the Python tests that failed last time, one by one
	$(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none -m "not job and not slow"
test-jobs-failed: $(STAMPS)/package
	$(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none -m "job and not slow"

.PHONY: test-slow
test-slow: $(STAMPS)/package  ## Run the slow Python tests
	$(BIN)/python -m pytest -q -m slow

.PHONY: chaos
chaos: $(STAMPS)/package  ## Kill processes of jobs in all modes and check every record, 20 minutes (CHAOS_FLAGS)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/run_chaos.py $(CHAOS_FLAGS)

# Needed only for comparisons: 100 MB that no test uses.
$(STAMPS)/bench: $(STAMPS)/package
	$(BIN)/python scripts/print_requirements.py bench > $(STAMPS)/bench.txt
	$(PIP) install -q -c constraints.txt -r $(STAMPS)/bench.txt
	touch $@

.PHONY: bench
bench: $(STAMPS)/bench  ## Run all benchmarks and comparisons, 70 minutes (BENCH_FLAGS="--only ctr"; needs redis-server)
	$(BIN)/python bench/run_all.py $(BENCH_FLAGS)

.PHONY: bench-quick
bench-quick: $(STAMPS)/bench  ## Run all benchmarks with small sizes, under five minutes
	$(BIN)/python bench/run_all.py --quick $(BENCH_FLAGS)

QUALITY_FLAGS ?=
.PHONY: quality
quality: $(STAMPS)/package  ## Compare what each mode learns on real data, hours (QUALITY_FLAGS="--only census_wide_deep")
	$(BIN)/python bench/quality.py $(QUALITY_FLAGS)

.PHONY: lint
lint: $(STAMPS)/package  ## Check style, types, spelling and links
	$(BIN)/ruff check $(PYTHON_DIRS)
	$(BIN)/ruff format --check $(PYTHON_DIRS)
	$(BIN)/mypy
	@echo clang-format --dry-run -Werror; $(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	$(BIN)/codespell
	$(MAKE) lint-locks
	$(MAKE) docs

# Only clang checks the annotations of core/sync/thread_annotations.h.
LOCK_SOURCES = $(shell find core bindings -name '*.cc' | grep -vE '_(test|fuzz|bench|kqueue|avx2)\.cc$$')
LOCK_FLAGS = -std=c++20 -fsyntax-only -Wno-everything -Wthread-safety -Werror=thread-safety -Icore -Ibindings \
  $$($(BIN)/python -c "import nanobind, sysconfig; print('-isystem', nanobind.include_dir(), '-isystem', sysconfig.get_path('include'))")

.PHONY: lint-locks
lint-locks: $(STAMPS)/tools  ## Check with clang that guarded members are used under their locks
	@if command -v $(CLANGXX) >/dev/null; then \
	  echo "$(CLANGXX) -Wthread-safety"; flags="$(LOCK_FLAGS)"; \
	  printf '%s\n' $(LOCK_SOURCES) | xargs -P $(JOBS) -n 4 $(CLANGXX) $$flags; \
	else \
	  echo "no $(CLANGXX): locks are not checked; install it with scripts/install_system_packages.sh clang"; \
	fi

# Apart from the other requirements: only the site needs these packages.
$(STAMPS)/docs: $(STAMPS)/package
	$(BIN)/python scripts/print_requirements.py docs > $(STAMPS)/docs.txt
	$(PIP) install -q -c constraints.txt -r $(STAMPS)/docs.txt
	touch $@

.PHONY: docs
docs: $(STAMPS)/docs  ## Build the documentation site in build/site; broken links fail
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

.PHONY: tutorials
tutorials: $(STAMPS)/package  ## Execute the tutorials and store what they print
	$(BIN)/python scripts/run_tutorials.py --write

.PHONY: pictures
pictures: $(STAMPS)/package  ## Draw the pictures of the documentation, and photograph the dashboard (needs chromium)
	$(BIN)/python scripts/draw_pictures.py
	$(BIN)/python scripts/take_screenshots.py

.PHONY: format
format: $(STAMPS)/requirements  ## Format Python and C++ files
	$(BIN)/ruff check --fix $(PYTHON_DIRS)
	$(BIN)/ruff format $(PYTHON_DIRS)
	@echo clang-format -i; $(BIN)/clang-format -i $(CXX_FILES)

.PHONY: sanitize
sanitize: sanitize-address sanitize-thread  ## Run the C++ tests under ASan+UBSan and TSan

.PHONY: sanitize-address
sanitize-address: $(STAMPS)/tools  ## Run the C++ tests under ASan+UBSan
	$(CONFIGURE) -B build/asan -DSPARSEFLEET_TESTS=ON -DSPARSEFLEET_SANITIZE=address,undefined
	$(CMAKE) --build build/asan -j $(JOBS) --target core_tests
	$(CTEST) --test-dir build/asan/core

.PHONY: sanitize-thread
sanitize-thread: $(STAMPS)/tools  ## Run the C++ tests under TSan
	$(CONFIGURE) -B build/tsan -DSPARSEFLEET_TESTS=ON -DSPARSEFLEET_SANITIZE=thread
	$(CMAKE) --build build/tsan -j $(JOBS) --target core_tests
	TSAN_OPTIONS=halt_on_error=1 $(SETARCH) $(CTEST) --test-dir build/tsan/core

.PHONY: fuzz
fuzz: $(STAMPS)/tools  ## Run the libFuzzer targets for FUZZ_SECONDS each (needs clang)
	@command -v clang++ >/dev/null || { \
	  echo "make fuzz needs clang++: run scripts/install_system_packages.sh" >&2; exit 1; }
	CXX=clang++ $(CONFIGURE) -B build/fuzz -DSPARSEFLEET_FUZZ=ON \
	  -DSPARSEFLEET_SANITIZE=address,undefined,fuzzer-no-link
	$(CMAKE) --build build/fuzz -j $(JOBS)
	for target in $$(find build/fuzz -name '*_fuzz' -type f); do \
	  mkdir -p build/fuzz/corpus/$$(basename $$target); \
	  $$target -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 \
	    build/fuzz/corpus/$$(basename $$target); \
	done
	$(MAKE) fuzz-python

.PHONY: fuzz-python
fuzz-python: $(STAMPS)/package  ## Fuzz exports, checkpoints and HTTP bodies for FUZZ_SECONDS each
	$(VENV)/bin/python -W ignore -m tests.fuzz --seconds $(FUZZ_SECONDS)

# In a separate environment, because the auditing tool is not a dependency.
.PHONY: audit
audit:  ## Check the pins, and look up their known vulnerabilities (needs PyPI's advisories)
	$(PYTHON) -m venv build/audit
	build/audit/bin/python -m pip --disable-pip-version-check -qq install -c constraints.txt pip-audit
	build/audit/bin/python scripts/audit.py $(AUDIT_FLAGS)

STRESS_RUNS ?= 50
.PHONY: stress
stress: $(STAMPS)/package  ## Run the fault tests STRESS_RUNS times under load; print what failed
	$(CMAKE) -S . -B $(EXTENSION) -DSPARSEFLEET_TESTS=ON
	$(CMAKE) --build $(EXTENSION) -j $(JOBS) --target core_tests
	$(BIN)/python scripts/stress.py --runs $(STRESS_RUNS) --native $(EXTENSION)/core $(STRESS_FLAGS)

.PHONY: clean
clean:  ## Remove .venv and everything built
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests examples bench scripts -name __pycache__ -type d -exec rm -rf {} +
