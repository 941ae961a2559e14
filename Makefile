# `make demo` and `make test` do everything on a fresh machine with Python, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NATIVE := $(wildcard src/eattn/ops/native/*.cpp src/eattn/ops/native/*.h)

# Tests start Python again and again: what it has compiled of our modules must stay.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all check bench results format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## make .venv and install what demo, test, check and bench need

# Some Pythons come without ensurepip; then the pip that is there fills the venv.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install pip; }

$(STAMP): pyproject.toml setup.py constraints.txt $(NATIVE) | $(BIN)/pip
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e ".[dev]"
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # as pip does, on all cores
	@test -e src/eattn/ops/_native.so || echo "warning: no native kernel was built" \
		"(is there a C++17 compiler?); the eager backend serves, more slowly" >&2
	@touch $@

demo: $(STAMP)  ## train, time and report next to softmax attention: demo/report.html, five minutes
	$(BIN)/python -m paper demo

test: $(STAMP)  ## run the tests
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not full"

test-all: test  ## and whole matrices of the GPU kernels: an hour
	$(BIN)/python -m pytest -n auto --dist worksteal -m full -v

check: $(STAMP)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## check the performance contract; fails when a target is missed
	$(BIN)/python -m paper run op block fig5 --quick --fresh --strict --out build/bench

results: $(STAMP)  ## write paper/RESULTS.md and its pictures from paper/results/
	$(BIN)/python -m paper results

format: $(STAMP)  ## let ruff rewrite the sources
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove .venv and everything built
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f src/eattn/ops/_native.so
	find src tests paper -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -maxdepth 1 -name '*.egg-info' -exec rm -rf {} +
