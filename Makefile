# `make testbed` and `make test` do all their own set-up; everything else is called by them.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
export OMP_NUM_THREADS ?= 1

.PHONY: help testbed test test-docker install lint types contracts unit clean

help:
	@echo "make testbed    run a study with five hospitals on this machine"
	@echo "make test       every check that CI runs"
	@echo "make test-docker  the compose testbed on a Docker engine, from building the image"
	@echo "make clean      remove the environment and the caches (runs/ and data/ stay)"

testbed: $(VENV)/installed
	$(BIN)/erosion testbed

test: lint types contracts unit

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/hadolint docker/Dockerfile

types: $(VENV)/installed
	$(BIN)/mypy

contracts: $(VENV)/installed
	$(BIN)/lint-imports

unit: $(VENV)/installed
	$(BIN)/pytest

# TORCH_INDEX= (empty) builds from docker/wheelhouse/ and the default index alone.
test-docker: $(VENV)/installed
	$(BIN)/pytest -m docker tests/docker

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
