# make demo: a federation on real data, with a report. make test: all tests. Both set up .venv first.
# VENV=DIR uses another environment, PYTHON=PROGRAM another interpreter, ARGS="..." goes to the command.

VENV ?= .venv
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$p && break; done)
ARGS ?=
BIN := $(VENV)/bin
# What the compiled module and the packaging are made from: a change means a new installation.
SOURCES := pyproject.toml constraints.txt CMakeLists.txt \
	$(shell find crypto/native -name '*.[ch]pp' -o -name '*.inl' -o -name '*.h')

export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: help demo deploy-demo test lint docs dist bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    run a federation on real data and write its report (ARGS='--rounds 3 --strategy fedprox')"
	@echo "make deploy-demo  the same in containers, as real clients (ARGS='--set protection.name=bfv')"
	@echo "make test    run the tests (ARGS='-k config', ARGS='-m slow', ARGS='-n 0'; two processes)"
	@echo "make lint    formatter, linter and type checker"
	@echo "make docs    the documentation as a site, in build/site; warnings are errors"
	@echo "make dist    source distribution and wheel, in dist/, and a run of the wheel outside of the repository"
	@echo "make bench   benchmarks of engine, secure sums and sizes, with their limits"
	@echo "make openfhe an interpreter that loads OpenFHE, for the protections of that name"
	@echo "make text    pre-trained weights and texts, with the libraries that read them (110 MB)"
	@echo "make sanitize the compiled module under address and undefined-behaviour sanitizers"
	@echo "make soak    damaged input, leaks and kills for a while (SOAK_S=900)"
	@echo "make clean   remove what was built; runs/ stays"

demo: $(VENV)/.installed
	$(BIN)/fedsim run $(ARGS)
	@echo "report: $$(ls -t runs/*/report.html | head -n 1)"

deploy-demo: $(VENV)/.installed
	scripts/deploy_demo.sh $(BIN)/fedsim $(ARGS)

test: $(VENV)/.installed-test
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# mkdocs-material prints advertisement for its author's other projects unless told not to.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict $(ARGS)

dist: $(VENV)/.installed-dev
	scripts/check_dist.sh $(BIN)/python

bench: $(VENV)/.installed-test
	$(BIN)/python -m experiments.bench $(ARGS)

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis $(VENV)

$(VENV)/pyvenv.cfg:
	@scripts/check_build.sh "$(PYTHON)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

# Editable, so that a change in Python needs no new installation.
$(VENV)/.installed: $(SOURCES) | $(VENV)/pyvenv.cfg
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(SOURCES) | $(VENV)/pyvenv.cfg
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-dev: $(SOURCES) | $(VENV)/pyvenv.cfg
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed-test $(VENV)/.installed

-include make/*.mk
