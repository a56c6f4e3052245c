# Every target sets up what it needs in .venv by itself; `make help` lists them.
BIN := .venv/bin
# Three test processes of one thread each (tests/conftest.py): docs/design/architecture.md.
JOBS ?= 3
TESTS ?= tests
# glibc keeps what was freed for the next test: else a seventh of the time goes into asking for it anew.
KEEP = MALLOC_TRIM_THRESHOLD_=536870912 MALLOC_MMAP_THRESHOLD_=33554432
PYTEST = $(KEEP) $(BIN)/python -m pytest $(if $(NOTHING_MISSING),--nothing-missing)

.PHONY: help setup demo test test-all soak check check-js docs bench reproduce wheel pins clean
.DEFAULT_GOAL := help

help: ## this list
	@echo "make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 12

setup: ## install everything the targets below need, into .venv
	@tools/setup dev

demo: ## from images to a trained, measured search; IMAGES=folder takes your own
	@tools/setup core
	@$(BIN)/lookalike demo $(if $(IMAGES),--images "$(IMAGES)")

test: ## the test suite
	@tools/setup dev
	@tools/chromium
	@$(PYTEST) -n $(JOBS) --dist worksteal $(TESTS)

test-all: ## the test suite with the long forms
	@tools/setup dev
	@tools/setup bench
	@tools/chromium
	@$(PYTEST) -n $(JOBS) --dist worksteal --slow $(TESTS)

soak: ## crashes, full disks, two writers, mutated files, and 64 clients (35 minutes); to results/soak.json
	@tools/setup dev
	@$(BIN)/python -m tests.soak $(SOAK) --out results

check: ## lint, types, layers, security, and documents that are up to date
	@tools/setup dev
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml --severity-level medium src
	tools/check-js
	$(BIN)/python tools/docs.py --check
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	$(BIN)/python tools/licenses.py --check
	$(BIN)/python tools/audit.py
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/test_source.py

check-js: ## lint and type-check the JavaScript (needs node and npm); FIX=1 formats it
	@tools/setup dev
	tools/check-js $(if $(FIX),--fix)

docs: ## the documentation site, in docs/_build/html
	@tools/setup dev
	@$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo docs/_build/html/index.html

bench: ## the benchmarks; NAME=encode picks one, DATA=folder gives the data sets
	@tools/setup dev
	@tools/setup bench
	@tools/chromium
	@$(BIN)/python -m benchmarks.speed $(if $(NAME),$(NAME),--all) --wait $(if $(DATA),--data "$(DATA)")

reproduce: ## the claims of the papers; PAPER=xbn picks one, DATA=folder gives the data sets
	@tools/setup core
	@tools/setup bench
	@$(BIN)/python -m benchmarks.papers $(if $(PAPER),$(PAPER),--list) $(if $(DATA),--data "$(DATA)")

wheel: ## build the package into dist/
	@tools/setup dev
	@rm -rf dist
	@$(BIN)/python -m build --wheel --no-isolation --outdir dist . >/dev/null
	@ls dist/*.whl

pins: ## resolve constraints.txt anew; UPGRADE=1 takes the newest versions
	@tools/setup dev
	@$(BIN)/python tools/pins.py $(if $(UPGRADE),--upgrade)

clean: ## delete what was built and cached here; .venv and runs/ stay
	rm -rf build dist docs/_build docs/_generated .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find src tests tools -name __pycache__ -prune -exec rm -rf {} +
