# Everything is a target; `make help` lists them. The environment is .venv, made from setup.cfg and requirements.txt.

SHELL := /bin/bash
.DEFAULT_GOAL := help

BIN := .venv/bin
LOCK := requirements.txt
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# pip writes RECORD last. What has none was cut off (Ctrl-C, a full disk) and pip would call it installed: it is forgotten, and put in again.
forget_halves = for info in .venv/lib/python*/site-packages/*.dist-info; do test -e "$$info/RECORD" || rm -rf "$$info"; done
# Installs the lock file's sections before $(1), or all of them: one version and known files of each, or nothing.
install_locked = $(forget_halves); sed '/^\# == $(1) ==/,$$d' $(LOCK) > .venv/$(LOCK) && $(PIP) --require-hashes --requirement .venv/$(LOCK)
T ?= tests
# Tests of real processes wait for a third of their time, often several at once: six at a time keep two cores busy.
WORKERS ?= 6

.PHONY: help env demo test test-busy check lint format types imports docs docs-check bench bench-check adapters lock sbom wheel npm-package clean screenshots

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## *' '{printf "  make %-12s %s\n", $$1, $$2}'

# Asked for only where an environment is made; PYTHON=… chooses another.
PYTHON ?= $(shell sh deploy/find_python.sh)

# False of an environment that was cut off before it had pip, or whose Python is gone: it is made anew. Asked where an environment is made or brought up to date.
has_pip = $(BIN)/python -c 'import importlib.metadata; importlib.metadata.version("pip")' 2>/dev/null

.venv/.runtime: setup.cfg pyproject.toml $(LOCK)
	@test -n "$(PYTHON)" || { echo "Error: Python 3.11 to 3.13 is needed (none found on PATH)"; exit 2; }
	@$(forget_halves)
	@$(has_pip) || { rm -rf .venv && "$(PYTHON)" -m venv .venv; } || { rm -rf .venv; echo "Error: '$(PYTHON) -m venv' failed; on Debian: apt-get install python3-venv"; exit 2; }
	@echo "Installing sentinel into .venv …"
	@$(call install_locked,test)
	@$(PIP) --no-deps --no-build-isolation --editable . --config-settings editable_mode=compat
	@touch $@

.venv/.test: .venv/.runtime
	@echo "Installing what the tests need …"
	@$(call install_locked,lint)
	@touch $@

.venv/.lint: .venv/.test
	@echo "Installing the linters …"
	@$(call install_locked,release)
	@touch $@

.venv/.release: .venv/.lint
	@echo "Installing what makes a release …"
	@$(call install_locked,end)
	@touch $@

env: .venv/.runtime  ## make the environment in .venv, nothing else

demo: .venv/.runtime  ## start everything with a demo ledger and leave it running
	@exec $(BIN)/sentinel demo

# Bytecode is kept, also where the machine's environment says otherwise: else every process of a test compiles all it imports.
test: export PYTHONDONTWRITEBYTECODE :=
test: .venv/.test  ## run the whole suite; T=path for a part, WORKERS=n for more processes
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(T)

test-busy: export PYTHONDONTWRITEBYTECODE :=
test-busy: .venv/.test  ## run the whole suite RUNS times (10) beside a process for each processor that only computes
	@$(BIN)/python -m tests.busy_runs --runs $(or $(RUNS),10) -- -n $(WORKERS) --dist loadgroup --no-loadscope-reorder --verbose $(T)

check: lint  ## what to run while working: everything of lint, and the unit tests
	@$(MAKE) --no-print-directory test T=tests/unit

lint: .venv/.lint  ## style, types, import contracts, dead code, docstrings, documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 tests/support/typed_agent.py
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/interrogate --quiet sentinel worker ops_console
	@$(MAKE) --no-print-directory docs-check

format: .venv/.lint  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/.runtime  ## write the documents that are made from the code
	$(BIN)/python -m tests.support.settings_table > docs/settings.md
	$(BIN)/python -m tests.support.facts_table > docs/risk-facts.md
	$(BIN)/python -m tests.support.answer_table > docs/guard-answer.md
	$(BIN)/worker states draw
	$(BIN)/worker workflow draw
	$(BIN)/worker order-review lanes draw
	@$(BIN)/python -m tests.support.typescript_types make

docs-check: .venv/.lint  ## are the made documents the ones the code makes, and do links lead somewhere?
	@$(BIN)/python -m tests.support.settings_table | diff -u docs/settings.md - || { echo "Error: docs/settings.md is stale; run make docs"; exit 1; }
	@$(BIN)/python -m tests.support.facts_table | diff -u docs/risk-facts.md - || { echo "Error: docs/risk-facts.md is stale; run make docs"; exit 1; }
	@$(BIN)/python -m tests.support.answer_table | diff -u docs/guard-answer.md - || { echo "Error: docs/guard-answer.md is stale; run make docs"; exit 1; }
	@folder=$$(mktemp -d); for what in states workflow "order-review lanes"; do $(BIN)/worker $$what draw --folder "$$folder" >/dev/null; done; \
	for file in "$$folder"/*; do diff -u "deploy/$$(basename "$$file")" "$$file" || { echo "Error: deploy/$$(basename "$$file") is stale; run make docs"; exit 1; }; done; rm -r "$$folder"
	@$(BIN)/python -m tests.support.typescript_types check
	@$(BIN)/python tests/support/links.py
	@$(BIN)/python -m tests.support.lock check
	@$(BIN)/python -m tests.support.sbom check

# ROUNDS, SECONDS and KEEP=1 of both; BENCH=--help tells more, BENCH=pieces times the parts of a guard apart.
bench_options = $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(KEEP),--keep)

bench: .venv/.test  ## measure guards beside Cerbos and pgbench, and the worker, interleaved; writes tests/bench/out/
	@$(BIN)/python -m $(if $(filter pieces,$(BENCH)),tests.bench.pieces $(filter-out pieces,$(BENCH)),tests.bench.run $(bench_options) $(BENCH))

bench-check: .venv/.test  ## does a guard cost more CPU than the kept figures of this machine? red above 5 %
	@$(BIN)/python -m tests.bench.check $(bench_options) $(BENCH)

screenshots: .venv/.test  ## pictures of every page of a demo into build/screenshots/, the README's into deploy/screenshots/
	@$(BIN)/python -m tests.browser.screenshots

adapters: .venv/.test  ## make the environments of the adapters' tests in .venv-adapters, one for each agent framework
	@$(BIN)/python -m tests.support.adapter_environments

lock: .venv/.release  ## write requirements.txt anew from setup.cfg; UPGRADE=--upgrade takes the newest versions
	@$(BIN)/python -m tests.support.lock make $(UPGRADE)

sbom: .venv/.release  ## write the bill of materials into deploy/sbom.cdx.json
	@$(BIN)/python -m tests.support.sbom make

wheel: .venv/.release  ## build the wheels of the programs and of the client alone into dist/
	@rm -rf build/lib build/bdist.* deploy/sentinel-client/build dist/sentinel_authority-*.whl dist/sentinel_client-*.whl
	@for folder in . deploy/sentinel-client; do $(BIN)/python -m build --no-isolation --wheel --outdir dist $$folder >/dev/null || exit 1; done; ls dist/*.whl

npm-package: .venv/.runtime  ## build the package of the TypeScript client into dist/
	@mkdir -p dist && $(BIN)/python -m tests.support.node_package dist

# The database is stopped and removed first, by the environment, made again where it is not whole. What is left where this is cut off does not count as an environment.
clean:  ## stop and remove everything this folder made: environment, database, caches
	@test ! -e var || $(BIN)/python -c 'import sentinel.store.embedded' 2>/dev/null || $(MAKE) --no-print-directory --always-make env || { echo "Error: nothing was removed: the environment that stops the database in var could not be made"; exit 2; }
	@test ! -e var || $(BIN)/python -m sentinel.store.embedded var
	@rm -rf var
	@rm -f .venv/.runtime $(BIN)/python
	@rm -rf .venv .venv-adapters build deploy/sentinel-client/build deploy/sentinel-client-ts/node_modules deploy/sentinel-client-ts/dist dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache .schemathesis .sdk-cache tests/bench/out
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
