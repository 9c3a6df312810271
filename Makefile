# `make testbed` and `make test` do all their own set-up; everything else is called by them.

FITS := -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'
# The first that fits; for another one: make testbed PYTHON=/opt/python3.13/bin/python3
PYTHON ?= $(shell for found in python3.11 python3.12 python3.13 python3; do \
  if $$found $(FITS) 2>/dev/null; then echo $$found; exit; fi; done; echo python3)
TORCH := $(shell sed -n 's/^\# \(torch==[0-9.]*\).*/\1/p' requirements.lock)
VENV := .venv
PROJECTS := pyproject.toml client/pyproject.toml common/pyproject.toml server/pyproject.toml
BIN := $(VENV)/bin
VERSION = $$($(BIN)/python -m setuptools_scm)
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
export OMP_NUM_THREADS ?= 1
export NO_MKDOCS_2_WARNING := 1
# The tests start hundreds of programs: compiling torch anew in each would take most of their time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help testbed test quick test-docker install lint types contracts docs pages unit fast lock \
	image bundle release audit fuzz clean

help:
	@echo "make testbed    run a study with five hospitals on this machine"
	@echo "make test       every check that CI runs"
	@echo "make quick      while you work: types, lint, contracts, and the tests that take least (a minute)"
	@echo "make docs       the documentation as a site, in site/; a broken link is an error"
	@echo "make pages      the pages of docs/ that are made from the code: algorithms, study and site file"
	@echo "make test-docker  the compose testbed on a Docker engine, from building the image"
	@echo "make lock       the packages anew, with their hashes, into requirements.lock (the image's) and"
	@echo "                requirements-dev.lock (these checks')"
	@echo "make image      the image, with its version; needs a Docker engine"
	@echo "make bundle     all that a machine without internet needs, in bundle/"
	@echo "make release    all that a release is, in release/, signed and verified; from a clean tag"
	@echo "make audit      known weaknesses of the locked packages"
	@echo "make fuzz       the property tests with other examples, and many"
	@echo "make clean      remove the environment, the site and the caches (runs/ and data/ stay)"

testbed: $(VENV)/installed
	$(BIN)/erosion testbed

test: lint types contracts docs unit

quick: lint types contracts fast

pages: $(VENV)/installed
	$(BIN)/erosion schema study --format markdown > docs/study-file.md
	$(BIN)/erosion schema site --format markdown > docs/site-file.md
	(printf '# Algorithms\n\nWhat an arm of a study file can be, as `erosion algorithms` prints it.\n\n'; \
	  $(BIN)/erosion algorithms) > docs/algorithms.md
	$(BIN)/python -m tests.support.data_flow > docs/data-protection/data-flow.md
	$(BIN)/python -m experiments.papers.leaderboard > docs/leaderboard.md

install: $(VENV)/installed

# torch has no hash: its index chooses the build for this machine. All else is what requirements-dev.lock
# says. Modules are compiled when they are imported; those of programs that start together are compiled here.
$(VENV)/installed: $(PROJECTS) requirements-dev.lock
	@$(PYTHON) $(FITS) || { echo "Erosion needs Python 3.11, 3.12 or 3.13 with venv and pip; '$(PYTHON)' is not." \
	  "Install one (Debian: python3-venv), or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) $(TORCH)
	$(INSTALL) --no-deps --require-hashes -r requirements-dev.lock
	SETUPTOOLS_SCM_PRETEND_VERSION=$(VERSION) \
	  $(INSTALL) --no-deps --no-build-isolation -e common -e client -e server -e .
	$(BIN)/pip check
	$(BIN)/python -c 'import erosion_client.connection.serve, erosion_server.coordination.run_study'
	touch $@

lint: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/hadolint docker/Dockerfile

types: $(VENV)/installed
	$(BIN)/mypy

contracts: $(VENV)/installed
	$(BIN)/lint-imports

docs: $(VENV)/installed
	$(BIN)/mkdocs build --quiet

# One process more than there are cores, as many tests wait for processes that they start, and five at
# most. Each begins with a share of its own, so that a module's tests share what was set up for them.
WORKERS := $(shell cores=$$(nproc); echo $$((cores < 4 ? cores + 1 : 5)))
PARALLEL = --numprocesses $(WORKERS) --dist worksteal

unit: $(VENV)/installed
	$(BIN)/pytest $(PARALLEL)

# Hardly any of these waits, and each process takes long to collect them.
fast: WORKERS := $(shell cores=$$(nproc); echo $$((cores < 4 ? cores : 4)))
fast: $(VENV)/installed
	$(BIN)/pytest $(PARALLEL) --quiet --quick

# SOURCE: where this program is found. Any mirror: PIP_INDEX_URL. TORCH_INDEX= (empty) builds from
# docker/wheelhouse/ and the default index alone.
BUILD_ARGS := $(foreach name,TORCH_INDEX PIP_INDEX_URL SOURCE,$(if $(filter undefined,$(origin $(name))),,--build-arg $(name)))
export EROSION_IMAGE ?= erosion
image: $(VENV)/installed
	docker build --file docker/Dockerfile --tag $(EROSION_IMAGE) $(BUILD_ARGS) \
	  --build-arg VERSION=$(VERSION) --build-arg REVISION=$$(git rev-parse HEAD) .

test-docker: $(VENV)/installed
	$(BIN)/pytest -m docker tests/docker

# Needs uv (https://docs.astral.sh/uv), and torch's CPU wheel in docker/wheelhouse/ so that nothing of CUDA
# is taken along: pip download --no-deps --dest docker/wheelhouse torch==VERSION
NOT_OURS := $(foreach part,client common server,--no-emit-package erosion-$(part))
lock:
	echo "$(TORCH)+cpu" > docker/wheelhouse/cpu-torch.txt
	sed -n 's/^requires = \[\(.*\)\]/\1/p' pyproject.toml | tr -d ' "' | tr , '\n' > docker/wheelhouse/build.txt
	(echo "# $(TORCH) comes from its own index. All other packages of the image, with their hashes (make lock):"; \
	  uv pip compile pyproject.toml docker/wheelhouse/build.txt --quiet --python-version 3.11 \
	    --find-links docker/wheelhouse --override docker/wheelhouse/cpu-torch.txt \
	    --generate-hashes --no-annotate --no-header --no-emit-package torch $(NOT_OURS)) > requirements.lock.new
	mv requirements.lock.new requirements.lock
	(echo "# $(TORCH) comes from its own index. All other packages of make install and CI, with their hashes (make lock):"; \
	  uv pip compile pyproject.toml docker/wheelhouse/build.txt --extra dev --quiet --python-version 3.11 \
	    --find-links docker/wheelhouse --override docker/wheelhouse/cpu-torch.txt \
	    --constraint requirements.lock \
	    --generate-hashes --no-annotate --no-header --no-emit-package torch $(NOT_OURS)) > requirements-dev.lock.new
	mv requirements-dev.lock.new requirements-dev.lock

bundle: $(VENV)/installed
	SETUPTOOLS_SCM_PRETEND_VERSION=$(VERSION) docker/bundle/make $(BIN)/pip bundle

# RELEASE_KEY=FILE signs it (docs/releasing.md).
release: $(VENV)/installed
	$(BIN)/python .ci/release.py make release

# Known weaknesses of all locked packages; asks PyPI, or the index of --vulnerability-service.
audit: $(VENV)/installed
	sed -nE 's/^(# )?([A-Za-z0-9._-]+==[^ ]+) .*/\2/p' requirements*.lock | sort --unique > $(VENV)/audited.txt
	$(BIN)/uvx --from pip-audit==2.10.1 pip-audit --strict --disable-pip --no-deps --requirement $(VENV)/audited.txt

# Property tests with other examples each time, and many; a failure prints how to repeat it.
fuzz: $(VENV)/installed
	$(BIN)/pytest $(PARALLEL) --quiet --hypothesis-profile=search $$(grep -rl 'hypothesis import' tests --include='test_*.py') \
	  tests/e2e/test_hostile_sites.py tests/e2e/test_hostile_connections.py

clean:
	rm -rf $(VENV) bundle release site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
