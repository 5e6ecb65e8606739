# Everything runs from a .venv that make builds itself; Python 3.11 or newer is all it needs.

PYTHON ?= python3
BIN := .venv/bin
COMPILED := PYTHONPATH=$(CURDIR)/build/compiled
PYTEST := pytest -q -n 3 --dist worksteal  # on two cores: some tests wait for processes
PIP := $(BIN)/pip install -qq --disable-pip-version-check
install = export HATCH_BUILD_NO_HOOKS=true; $(PIP) uv && $(BIN)/uv pip install -q -p .venv $(1) || $(PIP) $(1)

unexport PYTHONDONTWRITEBYTECODE  # the tests start hundreds of Pythons, each of which would compile all that it imports

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/installed  ## replay a bundled chat trace on Llama-3.1-8B and one H100
	$(BIN)/servecast simulate Llama-3.1-8B --gpu h100-sxm --trace traces/chat.csv

test: .venv/installed-dev  ## every check there is; what the gate runs
	$(MAKE) --no-print-directory -j 2 units lint floors types interpreted

test-quick: .venv/installed-dev  ## in less than a minute: all but the compiled engine and the slow tests
	$(MAKE) --no-print-directory -j 2 lint floors types swift

swift:
	EXAMPLES=0.2 $(BIN)/python -m $(PYTEST) -m 'not slow' --ignore tests/test_compiled.py

thorough: compiled  ## the tests of properties with twenty times as many examples, other ones each time
	EXAMPLES=20 $(COMPILED) $(BIN)/$(PYTEST) --import-mode=append -m hypothesis

lint: .venv/installed-dev  ## formatting and style
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet

types: .venv/installed-dev  ## mypy --strict
	$(BIN)/mypy

floors: .venv/installed-dev  ## imports go down only
	$(BIN)/lint-imports

units: compiled  ## the tests, README examples among them, of the package as its wheel installs it; `interpreted` has tested the naive engine
	EXAMPLES=0.15 $(COMPILED) $(BIN)/$(PYTEST) --import-mode=append -k 'not [reference and not -reference]'

collected: .venv/installed-dev  # pytest rewrites the assertions of each file here, once, and not in three processes at the same time
	$(BIN)/python -m pytest -q --collect-only > /dev/null

interpreted: collected  ## the engine's tests on its sources, which is what runs in a checkout; beside the compiler, so in one process
	EXAMPLES=0.15 ENGINE_EXAMPLES=0.02 $(BIN)/python -m pytest -q tests/engine tests/cluster tests/steptime tests/conformance -k 'not every_version and not all_recordings'

compiled: build/compiled/.done  ## the package as its wheel for this platform installs it, in build/compiled, optimized less

wheels: .venv/installed-dev  ## a wheel for this platform and Python, a pure one for all others, and an sdist, in dist
	$(BIN)/python -m build --no-isolation --outdir dist
	HATCH_BUILD_NO_HOOKS=true $(BIN)/python -m build --wheel --no-isolation --outdir dist

speed: build/optimized/.done  ## how fast the compiled engine is, on the traces in ../shared
	PYTHONSAFEPATH=1 PYTHONPATH=build/optimized:. OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.speed

format: .venv/installed-dev  ## rewrite the code in the house format
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

accuracy: .venv/installed-dev  ## replay the measured runs in ../shared again and write docs/accuracy.md
	$(BIN)/python -m benchmarks.fit_bands ../shared/measured
	$(BIN)/python -m benchmarks.accuracy ../shared/measured

readme: .venv/installed-dev  ## run the pages' examples again and write down their output
	$(BIN)/python -m tests.readme
	$(BIN)/python -m tests.specs.test_docs
	$(BIN)/python -m tests.docs.fidelity
	$(BIN)/python -m tests.docs.reference
	$(BIN)/python -m tests.docs.notebooks

site: .venv/installed-dev  ## the pages as a site, in build/site; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

clean:  ## forget the .venv and all caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	@$(call install,-e .)
	@touch $@

.venv/installed-dev: pyproject.toml
	$(PYTHON) -m venv .venv
	@$(call install,-e '.[dev]')
	@touch $@ .venv/installed

# Where there is a C compiler, an engine that mypyc does not take is an error, as it is in a wheel to be published.
build/compiled/.done: export SERVECAST_OPT_LEVEL := 1
build/%/.done: .venv/installed-dev hatch_build.py $(shell find sim hardware_profiles traces -type f -not -name '*.pyc')
	@rm -rf build/$* && mkdir -p build/$*
	$(if $(shell command -v cc),CIBUILDWHEEL=1) $(BIN)/python -m build --wheel --no-isolation --outdir build/$* > build/$*.log 2>&1 || { cat build/$*.log; exit 1; }
	@cd build/$* && $(PYTHON) -m zipfile -e *.whl . && rm *.whl && touch .done

.PHONY: help demo test test-quick thorough swift lint types floors units compiled wheels speed collected interpreted format accuracy readme site clean
