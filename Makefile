# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

export OMP_NUM_THREADS ?= 1

# the long suites of safety: STOP matrix, hostile folders, failing calls and power cuts, fuzzing
SAFETY := tests/stop tests/hostile tests/faults tests/fuzz

.PHONY: setup demo test test-rest test-safety test-all test-slow check lint bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt scripts/setup
	PYTHON=$(PYTHON) VENV=$(VENV) scripts/setup
	@touch $@

demo: setup  ## learn peg insertion from 20 demonstrations, with a scripted operator, in a few minutes
	$(BIN)/dovetail run peg-insertion runtime=ray --console
	@echo "To use these commands: source $(VENV)/bin/activate"

test: setup  ## about ten minutes
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-rest: setup  ## what `make test` leaves out, without the slow tests
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "extended and not slow" $(SAFETY:%=--ignore=%)

test-safety: setup  ## what both leave out: pairs of the STOP matrix, 100 hostile folders, failing calls, fuzzing
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "extended and not slow" $(SAFETY)

test-all: test test-rest test-safety

test-slow: setup  ## learning curves, hundreds of kills and resets, the digests of 0.6, and the real lerobot package
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

bench: setup  ## with the packages that we compare with
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,bench]"
	$(BIN)/dovetail bench all
	$(BIN)/python -m benchmarks all

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache src/*.egg-info
