# Everything runs from a .venv that make builds itself; Python 3.11 or newer is all it needs.

PYTHON ?= python3
BIN := .venv/bin
PIP := HATCH_BUILD_NO_HOOKS=true $(BIN)/pip install -qq --disable-pip-version-check

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/installed  ## replay a bundled chat trace on Llama-3.1-8B and one H100
	$(BIN)/servecast simulate Llama-3.1-8B --gpu h100-sxm --trace traces/chat.csv

test: lint floors  ## every check there is; what the gate runs
	$(MAKE) --no-print-directory -j 2 types compiled
	$(MAKE) --no-print-directory units interpreted

lint: .venv/installed-dev  ## formatting and style
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet

types: .venv/installed-dev  ## mypy --strict
	$(BIN)/mypy

floors: .venv/installed-dev  ## imports go down only
	$(BIN)/lint-imports

units: .venv/installed-dev  ## the tests, README examples among them
	$(BIN)/python -m pytest -q -n 2

compiled: .venv/installed-dev  ## the engine as machine code, if there is a C compiler: two to three times as fast
	@if command -v $${CC:-cc} >/dev/null; then $(BIN)/python hatch_build.py; else echo "no C compiler: the engine is interpreted"; fi

interpreted: .venv/installed-dev  ## the engine's tests on its sources, which is what runs where nothing was compiled
	SERVECAST_INTERPRETED=1 $(BIN)/python -m pytest -q -n 2 tests/serving tests/steptime tests/conformance tests/theory

format: .venv/installed-dev  ## rewrite the code in the house format
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

accuracy: .venv/installed-dev  ## replay the measured runs in ../shared again and write docs/accuracy.md
	$(BIN)/python -m benchmarks.fit_bands ../shared/measured
	$(BIN)/python -m benchmarks.accuracy ../shared/measured

readme: .venv/installed-dev  ## run the pages' examples again and write down their output
	$(BIN)/python -m tests.readme

clean:  ## forget the .venv and all caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache sim/_compiled

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	@touch $@

.venv/installed-dev: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) -e '.[dev]'
	@touch $@ .venv/installed

.PHONY: help demo test lint types floors units compiled interpreted format accuracy readme clean
