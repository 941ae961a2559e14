# `make demo` and `make test` work on a fresh machine with Python, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
NATIVE := $(wildcard src/eattn/ops/native/*.cpp src/eattn/ops/native/*.h)

# Tests start many Python processes, which are faster with cached bytecode.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all check bench results docs notebooks format clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## create .venv and install all dependencies

# If Python lacks ensurepip, install pip into the venv with the existing pip.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install pip; }

$(STAMP): pyproject.toml setup.py constraints.txt $(NATIVE) | $(BIN)/pip
	$(BIN)/python -m pip install --no-compile -c constraints.txt -e ".[dev]"
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # like pip, but on all cores
	@test -e src/eattn/ops/_native.so || echo "warning: no native kernel was built" \
		"(is a C++17 compiler installed?); eattn uses the slower eager backend" >&2
	@touch $@

demo: $(STAMP)  ## compare with softmax attention and write demo/report.html (5 minutes)
	$(BIN)/python -m paper demo

test: $(STAMP)  ## run the tests
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder -m "not full"

test-all: test  ## run all tests, with every combination of the GPU kernels (1 hour)
	$(BIN)/python -m pytest -n auto --dist worksteal -m full -v

check: $(STAMP)  ## check lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## measure the performance targets and fail if one is missed
	$(BIN)/python -m paper run op block fig5 --quick --fresh --strict --out build/bench

results: $(STAMP)  ## write paper/RESULTS.md and its pictures from paper/results/
	$(BIN)/python -m paper results

docs: $(STAMP)  ## build the documentation site into build/site; the first time, fetch packages and export its models (5 minutes)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo "to read it: python3 -m http.server --directory build/site"

notebooks: $(STAMP)  ## run the notebooks and store their outputs (10 minutes)
	$(BIN)/python docs/site/run_notebooks.py docs/notebooks/*.ipynb

format: $(STAMP)  ## fix lint and format with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove .venv and all build products
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f src/eattn/ops/_native.so
	find src tests paper -name __pycache__ -type d -prune -exec rm -rf {} +
	find src -maxdepth 1 -name '*.egg-info' -exec rm -rf {} +
