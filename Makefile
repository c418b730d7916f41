# Everything from a fresh clone: Python >= 3.10 and make are all it needs. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
VENV ?= .venv
PY := $(VENV)/bin/python
# Notes of one `make test`: the logs, coverage data. Nothing else writes there.
SCRATCH := .make
# On a terminal pip shows its progress, since torch is large; in a log it speaks only of errors.
INSTALL := $(PY) -m pip install $(if $(MAKE_TERMOUT),,--quiet --quiet) --disable-pip-version-check -c constraints.txt
PYTEST := $(PY) -m pytest
# A part of `make test`: pytest records for tests/unsteady.py what failed.
PART = GANGRUN_TEST_RECORD=$(SCRATCH)/$(@:test-%=%).json $(PYTEST)
QUICK := -m "not processes and not serial and not cluster and not sweep"
# The tests start thousands of pythons: without bytecode on disk each would compile all of gangrun anew.
unexport PYTHONDONTWRITEBYTECODE
JOBS ?= 2
# Tests of real processes wait more than they compute, so more of them go on at once.
WAITING ?= 4
# Clusters side by side: the tests on a cluster wait for Slurm most of the time.
CLUSTERS ?= 3
SEEDS ?= 20000

.PHONY: help man docs demo test check format test-quick test-core test-sweep test-processes test-serial test-cluster test-slurm24 bench clean install system forget

help:  ## this list
	@echo "gangrun: make targets"
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "Variables: PYTHON=python3.12 (which python makes $(VENV)), JOBS=2 (quick tests at once), WAITING=4 (tests of processes at once), CLUSTERS=3 (Slurm clusters at once), SEEDS=20000 (make bench)"

demo: $(VENV)/.runs  ## train a small model, kill a rank in the middle, watch it come back, compare the weights
	@$(PY) examples/kill_a_rank/demo.py

test: forget system $(VENV)/.tests  ## all of it: linters, types, layers, house, tests, coverage of core and wire
	@part() { $(MAKE) --no-print-directory test-$$1 || red="$$red $$1"; }; red=; \
	  set -m; ( for part in cluster processes; do $(MAKE) --no-print-directory test-$$part >$(SCRATCH)/$$part.out 2>&1 || \
	    touch $(SCRATCH)/$$part.red; done ) & beside=$$!; set +m; \
	  trap 'kill -- -$$beside 2>/dev/null || true' EXIT; \
	  $(MAKE) --no-print-directory check || { echo "make: red: check"; exit 1; }; \
	  part core; part quick; part sweep; \
	  echo "waiting for the tests on the Slurm cluster and those of processes, which run beside these"; wait $$beside || red="$$red beside"; \
	  for part in cluster processes; do \
	    if [ -e $(SCRATCH)/$$part.red ]; then red="$$red $$part"; cat $(SCRATCH)/$$part.out; \
	    else grep -v '^$$' $(SCRATCH)/$$part.out | tail -n 15; fi; done; \
	  part serial; echo; \
	  echo "what ran (the cluster, then processes, beside make check and the three before them; serial alone):"; \
	  for part in core quick sweep cluster processes serial; do printf '%-10s' $$part; tail -qn 1 $(SCRATCH)/$$part.log; done; \
	  [ -z "$$red" ] || { echo "make: red:$$red"; echo "$$red" >$(SCRATCH)/red; exit 1; }

forget:
	@mkdir -p $(SCRATCH) && rm -f $(SCRATCH)/red $(SCRATCH)/*.red $(SCRATCH)/*.json

check: $(VENV)/.tests  ## linters, types, import contracts, house test
	@echo "ruff: lint"; $(PY) -m ruff check --quiet .
	@echo "ruff: format"; $(PY) -m ruff format --check --quiet . || { echo "not formatted as the others are: make format"; exit 1; }
	@echo "mypy: strict"; $(PY) -m mypy
	@echo "import-linter: layers"; mkdir -p $(SCRATCH); $(VENV)/bin/lint-imports >$(SCRATCH)/imports.log || { sed -n '/^Contracts/,$$p' $(SCRATCH)/imports.log; exit 1; }
	@echo "house test"; $(PYTEST) -q -p no:cacheprovider tests/test_house.py tests/test_layout.py

format: $(VENV)/.tests  ## put every file into the common form
	@$(PY) -m ruff check --fix --quiet . ; $(PY) -m ruff format .

test-quick: $(VENV)/.tests  ## tests without real processes, several at once, but those of core, wire and the house (make check)
	@mkdir -p $(SCRATCH)
	@$(PART) --dist worksteal -n $(JOBS) $(QUICK) --ignore=tests/test_house.py --ignore=tests/test_layout.py --ignore=tests/wire --ignore-glob='tests/core/test_*' --durations=15 2>&1 | tee $(SCRATCH)/quick.log

test-core: $(VENV)/.tests  ## those of core and wire, which must cover both branch by branch: tracing takes time, so these alone
	@mkdir -p $(SCRATCH) && rm -f $(SCRATCH)/coverage*
	@$(PART) --dist worksteal -n $(JOBS) $(QUICK) tests/core tests/wire --ignore=tests/core/judgement --cov --cov-report= 2>&1 | tee $(SCRATCH)/core.log
	@echo "branch coverage of core and wire by the tests in tests/core and tests/wire, which must be 100 %:"
	@$(PY) -m coverage report --fail-under=100

test-sweep: $(VENV)/.tests  ## two thousand seeds of the simulated world
	@mkdir -p $(SCRATCH)
	@$(PART) -m sweep 2>&1 | tee $(SCRATCH)/sweep.log

test-processes: $(VENV)/.tests  ## tests that start real processes, several at once
	@mkdir -p $(SCRATCH)
	@$(PART) --dist worksteal -n $(WAITING) -m processes --durations=10 2>&1 | tee $(SCRATCH)/processes.log

test-serial: $(VENV)/.tests  ## tests that measure time, one at a time and nothing beside them
	@mkdir -p $(SCRATCH)
	@$(PART) -m serial --durations=5 2>&1 | tee $(SCRATCH)/serial.log

test-cluster: $(VENV)/.tests  ## tests on a real Slurm cluster of namespaces, which needs root
	@mkdir -p $(SCRATCH)
	@$(PART) --dist worksteal -n $(CLUSTERS) -m cluster --durations=15 2>&1 | tee $(SCRATCH)/cluster.log

test-slurm24: system $(VENV)/.tests  ## the tests on a Slurm cluster again, with Slurm 24.11 from Debian's mirror (root; not part of CI)
	@command -v patchelf >/dev/null 2>&1 || apt-get install -y -qq patchelf >/dev/null || { echo "make: this needs patchelf"; exit 1; }
	@echo "fetching Slurm 24.11 into $(SCRATCH)/slurm24"; tests/slurm/fetch_slurm24.sh $(SCRATCH)/slurm24
	@GANGRUN_TEST_SLURM=$(CURDIR)/$(SCRATCH)/slurm24/root GANGRUN_TEST_WHOLE_CONTRACT=1 $(PYTEST) tests/slurm tests/contract -k slurm --durations=10

bench: $(VENV)/.tests  ## benchmarks: a table and JSON under benchmarks/results (not part of CI; minutes)
	@mkdir -p benchmarks/results
	@SEEDS=$(SEEDS) $(PY) benchmarks/run_all.py --out benchmarks/results

man: $(VENV)/.runs  ## man pages from the help, in build/man: MANPATH=build/man: man gangrun-run
	@$(PY) -m gangrun.cli.manual build/man/man1

docs: $(VENV)/.docs  ## the documentation as a site, in build/site: warnings are errors
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "open build/site/index.html, or: $(PY) -m http.server -d build/site"

clean:  ## remove the environment and everything that was generated
	rm -rf $(VENV) $(SCRATCH) build dist htmlcov .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf *.egg-info benchmarks/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

install: $(VENV)/.tests  ## make the environment only

# What tests need from the system. As root it is installed; otherwise the tests that need it say that they skip.
# One line a tool: a program to look for, and the Debian packages that bring it. A policy-rc.d that says no keeps their
# services from starting: the tests run daemons of their own.
system:
	@policy=/usr/sbin/policy-rc.d; \
	need() { command -v "$$1" >/dev/null 2>&1 && return; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	    echo "installing $${*:2} (for $$1)"; \
	    if [ ! -e $$policy ]; then printf '#!/bin/sh\nexit 101\n' >$$policy; chmod 755 $$policy; trap "rm -f $$policy" EXIT; fi; \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$${@:2}" >/dev/null; } || echo "note: that failed"; \
	  else echo "note: $$1 is missing; tests that need it will skip (packages: $${*:2})"; fi; }; \
	need cc gcc libc6-dev; \
	need slurmctld slurm-wlm slurm-wlm-basic-plugins munge; \
	need munged munge; \
	need tc iproute2; \
	need groff groff; \
	need chromium chromium

# A python that is too old or without venv is told in words, before anything is half made.
$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "make: no '$(PYTHON)' here. Install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3 ..."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "make: gangrun needs Python 3.10 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1). Name another: make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "make: $(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) -V 2>&1)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# Stamps: what the demo needs, what the site needs, and what the tests need besides.
$(VENV)/.runs: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing gangrun and torch into $(VENV). From your package index this downloads torch (with the CUDA libraries of PyPI's"
	@echo "torch several GB; PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu gets the small one), numpy, and what gangrun"
	@echo "itself needs: click, rich, pyzmq, msgspec, submitit, nvidia-ml-py, isal, xxhash. Nothing is downloaded a second time."
	@$(INSTALL) -e '.[torch]'
	@touch $@

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing gangrun and what builds its site into $(VENV)"
	@$(INSTALL) -e '.[docs]'
	@touch $@

$(VENV)/.tests: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing gangrun, torch and what tests it into $(VENV) (the first time, torch takes a while)"
	@$(INSTALL) -e '.[torch,test]'
	@touch $@ $(VENV)/.runs $(VENV)/.docs
