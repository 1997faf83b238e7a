# Everything happens in .venv, in this folder. The first target that needs it makes it; nothing is installed twice.

PYTHON ?= python3.13 python3.12 python3.11 python3.10 python3
VENV := .venv
RUN := $(VENV)/.installed
DEV := $(VENV)/.installed-dev
MINUTES := 30
INSTALL = $(VENV)/bin/python -m pip install --disable-pip-version-check --no-input --editable

# One file of versions, for what is installed and for what builds it (pip reads the second one since 26).
export PIP_CONSTRAINT := constraints.txt
export PIP_BUILD_CONSTRAINT := constraints.txt

.PHONY: help swarm test lint format unit chaos clean
.DEFAULT_GOAL := help
.NOTPARALLEL:

help:
	@echo "make swarm    a training run of several peers on this machine (ARGS=\"--peers 2\", ...)"
	@echo "make test     what CI runs: lint, then every test"
	@echo "make unit     the fast tests (ARGS=\"-k codec\", ...)"
	@echo "make chaos    break peers of a real swarm for MINUTES=30, and write report.json (ARGS=\"--seed 2\", ...)"
	@echo "make lint     format check, ruff, mypy"
	@echo "make format   rewrite the code in the project's format"
	@echo "make clean    remove what these commands made (not what a run wrote)"

swarm: $(RUN)
	$(VENV)/bin/prime-p2p swarm $(ARGS)

# The pure tests on all cores; those with processes of their own, which wait as long as they compute, two at a time; the
# chaos suite with the machine to itself.
test: lint
	$(VENV)/bin/python -m pytest tests/unit -n auto
	$(VENV)/bin/python -m pytest tests/swarm -n 2 --dist worksteal
	$(VENV)/bin/python -m pytest tests/chaos

unit: $(DEV)
	$(VENV)/bin/python -m pytest tests/unit -n auto $(ARGS)

chaos: $(DEV)
	$(VENV)/bin/python tests/chaos/chaos.py --minutes $(MINUTES) --report report.json $(ARGS)

lint: $(DEV)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy prime_p2p

format: $(DEV)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN): pyproject.toml constraints.txt hatch_build.py prime_p2p/kernels/kernels.c | $(VENV)/bin/pip
	@echo "Installing prime-p2p and what it needs into $(VENV): PyTorch among it, so 1 GB or more and some minutes"
	$(INSTALL) . --quiet
	@touch $@

$(DEV): $(RUN)
	$(INSTALL) ".[dev]" --quiet
	@touch $@

$(VENV)/bin/pip:
	@for python in $(PYTHON); do \
		if $$python -c "import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info < (3, 14))" 2>/dev/null; then \
			echo "Making $(VENV) with $$($$python --version)"; \
			exec $$python -m venv $(VENV); \
		fi; \
	done; \
	echo "prime-p2p needs Python 3.10 to 3.13 with its venv module (on Debian: python3 and python3-venv); tried: $(PYTHON)" >&2; \
	exit 1
