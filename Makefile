# Tonnage: `make up` runs the local fleet, `make test` the tests. Everything is set up in .venv on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --disable-pip-version-check -q -c constraints.txt
TRACE ?= samples/mooncake_sample.jsonl
FUZZ_S ?= 300
UP_ARGS ?= --replay $(TRACE) --limit 200 --speed 10

.PHONY: help up test lint bench e2e-vllm fuzz audit compiled test-compiled images chart chaos soak constraints clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

up: $(VENV)/.local ## the local fleet: a real trace through it, a report, then it stays up
	$(BIN)/tonnage up $(UP_ARGS)

test: $(VENV)/.dev ## every test that needs no GPU, cluster or network
	$(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

lint: $(VENV)/.dev ## ruff, mypy --strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(VENV)/.dev ## short versions of the benchmarks; see benchmarks/README.md
	$(BIN)/python benchmarks/run.py

e2e-vllm: $(VENV)/.dev ## the product before real engines: make e2e-vllm ENGINES="http://127.0.0.1:8101 http://127.0.0.1:8102"
	TONNAGE_E2E_ENGINES="$(ENGINES)" $(BIN)/python -m pytest -m e2e tests/e2e -s $(PYTEST_ARGS)

fuzz: $(VENV)/.dev ## coverage-guided fuzzing of every parser, FUZZ_S seconds a target
	$(PIP) -e '.[fuzz]'
	mkdir -p .tonnage/fuzz
	for target in $${FUZZ_TARGETS:-$$($(BIN)/python tests/fuzz.py)}; do \
	    mkdir -p .tonnage/fuzz/$$target && (cd .tonnage/fuzz/$$target && \
	    $(CURDIR)/$(BIN)/python $(CURDIR)/tests/fuzz.py $$target -max_total_time=$(FUZZ_S) -max_len=4096 .) || exit 1; \
	done

audit: $(VENV)/bin/python ## the pinned dependencies against published advisories; needs a network
	$(BIN)/pip install --disable-pip-version-check -q pip-audit
	$(BIN)/pip-audit -r constraints.txt --no-deps --disable-pip --strict

compiled: $(VENV)/.dev ## the router's data path compiled to C in .tonnage/compiled (a C compiler, 2 to 4 minutes); run it with PYTHONPATH=.tonnage/compiled
	$(PIP) 'mypy[mypyc]'
	$(BIN)/python services/router/compile.py .tonnage/compiled

test-compiled: compiled ## the router's tests over the compiled modules
	PYTHONPATH=.tonnage/compiled $(BIN)/python -m pytest -n auto tests/integration/router tests/unit/router tests/unit/core_scheduling \
	    tests/unit/core_prefix_index tests/unit/core_flow_control --deselect tests/unit/router/test_objectives.py $(PYTEST_ARGS)

images: $(VENV)/bin/python ## each image target installed afresh from its own instruction, started and asked; needs a package index
	$(PYTHON) docker/check_targets.py

chart: $(VENV)/.dev ## the chart's README, the settings in its schema and the router's page of settings, from their sources
	$(BIN)/python deploy/helm/settings_schema.py deploy/helm/tonnage
	$(BIN)/python deploy/helm/chart_readme.py deploy/helm/tonnage
	$(BIN)/python deploy/helm/settings_page.py docs/router_settings.md

chaos: $(VENV)/.dev ## a trace through the fleet while each fault is done to it, 8 to 20 minutes: make chaos CHAOS_ARGS="--only engine"
	$(BIN)/python benchmarks/chaos/run.py $(CHAOS_ARGS)

soak: $(VENV)/.dev ## long traffic, overload, a herd, a large fleet; SOAK_S seconds of the first (1800)
	$(BIN)/python benchmarks/soak/run.py $(SOAK_ARGS)

constraints: ## pin anew what a fresh environment with every extra resolves to
	rm -rf $(VENV)-pins && $(PYTHON) -m venv $(VENV)-pins
	$(VENV)-pins/bin/pip install --disable-pip-version-check -q -e '.[local,kube,dev,torch,fuzz]'
	$(VENV)-pins/bin/pip freeze --exclude-editable | sed 's/+cpu$$//' > constraints.txt
	rm -rf $(VENV)-pins

clean: ## remove the environment and what tools left behind
	rm -rf $(VENV) .tonnage .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.local: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[local]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) -e '.[local,dev,torch]'
	@touch $@
