# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

export OMP_NUM_THREADS ?= 1

.PHONY: setup demo test test-slow check lint bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt scripts/setup
	PYTHON=$(PYTHON) VENV=$(VENV) scripts/setup
	@touch $@

demo: setup  ## learn peg insertion from 20 demonstrations, with a person's help, in a few minutes
	$(BIN)/dovetail run peg-insertion runtime=ray --console
	@echo "For these commands: source $(VENV)/bin/activate"

test: setup
	$(BIN)/python -m pytest -n 2

test-slow: setup  ## learning curves, hundreds of kills and resets, and the real lerobot in an environment of its own
	$(BIN)/python -m pytest -n 2 -m slow

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test

bench: setup  ## with the peers that we compare with
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,bench]"
	$(BIN)/dovetail bench sim realtime takeover images
	$(BIN)/python -m benchmarks all

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache src/*.egg-info
