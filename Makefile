# The task file: people, CI and CONTRIBUTING.md use these names.
# Needs git, make and Python >= 3.10. All state stays in .build/ of this checkout; ~/airflow is never touched.

PYTHON ?= python3
BUILD  := $(CURDIR)/.build
VENV   := $(BUILD)/venv
PY     := $(VENV)/bin/python
UV     := $(VENV)/bin/uv
# Pass e.g. ARGS="-k retry tests/local" to test, or a DAG's name to demo: make demo DAG=launch_local_retry, or yours: DAGS=my/folder DAG=mine
ARGS   ?=
DAG    ?= launch_local_demo
DAGS   ?= example_dags
# Most tests wait most of the time: two cores serve six.
JOBS   ?= 6
PORT   ?= 8793

# The environment is current as long as the files that describe it are: their checksum names the stamp.
KEY    := $(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
READY  := $(BUILD)/ready-$(KEY)

# Byte code makes every import two to five times faster, and Airflow imports a lot.
unexport PYTHONDONTWRITEBYTECODE
# These would lead to another environment than ours.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV
export PATH := $(VENV)/bin:$(PATH)
export AIRFLOW_HOME := $(BUILD)/airflow

# Only our examples: Airflow's own would bring complaints about providers that are not installed.
BUNDLES := [{"name": "examples", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", \
  "kwargs": {"path": "$(abspath $(DAGS))"}}]
AIRFLOW_ENV := AIRFLOW__CORE__LOAD_EXAMPLES=False AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST='$(BUNDLES)' \
  AIRFLOW__CORE__DAGS_FOLDER=$(abspath $(DAGS)) AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION=False LAUNCH_HOME=$(BUILD)/launch \
  AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=sqlite:///$(BUILD)/airflow/airflow.db \
  env $$($(PY) tools/demo_connections.py $(BUILD)) \
  $(if $(findstring gang,$(DAG)),AIRFLOW_CONN_LAUNCH_KUBERNETES_DEFAULT='launch-kubernetes://?namespace=launch-gang')
# Containers need an engine, and an image: made from files of this machine, so that nothing is pulled.
ENGINE = $(if $(findstring docker,$(DAG)),made=$$($(PY) -m tests.engines.docker images) || \
  { echo "$(DAG) needs a Docker engine and its image; root can start one: $(PY) -m tests.engines.docker start"; exit 1; }; \
  export $$(echo "$$made" | head -n 1);)
# A cluster of yours has to have the image already, see CONTRIBUTING.md.
CLUSTER = $(if $(findstring kubernetes,$(DAG)),made=$$($(PY) -m tests.engines.kubernetes $(if $(LAUNCH_TEST_KUBECONFIG),status,$(if $(findstring gang,$(DAG)),queue,images))) || \
  { echo "$(DAG) needs a Kubernetes cluster: LAUNCH_TEST_KUBECONFIG names yours; root can start one: make cluster ARGS=start"; exit 1; }; \
  export $$(echo "$$made" | head -n 1);)

# A server that runs the jobs in Docker, for the time of the demo.
BATCH = $(if $(findstring aws_batch,$(DAG)),$(PY) -m tests.engines.aws_batch)

# A cluster of yours is used if SLURM_CONF names it.
SLURM = $(if $(findstring slurm,$(DAG)),made=$$(test "$$SLURM_CONF" && echo SLURM_CONF=$$SLURM_CONF || $(PY) -m tests.engines.slurm status) || \
  { echo "$(DAG) needs a Slurm cluster: SLURM_CONF names yours; root can start one: $(PY) -m tests.engines.slurm start"; exit 1; }; \
  export $$(echo "$$made" | head -n 1);)

.DEFAULT_GOAL := help
.PHONY: help setup torch gpu demo demo-ui test soak live celery browser ray versions engine cluster lint types gen docs site bench constraints build release-check clean

help:  ## list the tasks
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "make %-8s  %s\n", $$1, $$2}'

setup: $(READY)  ## make the environment in .build/venv (the other tasks do it by themselves)

$(READY):
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit(f"needs Python 3.10 or newer, {sys.executable} is {sys.version.split()[0]}; use make PYTHON=...")'
	@mkdir -p $(BUILD)
	@echo "setting up $(VENV) (once; takes a minute)"
	@test -x $(PY) || $(PYTHON) -m venv $(VENV) || { echo "python's venv module does not work here; on Debian: apt-get install python3-venv"; exit 1; }
	@test -x $(UV) || $(PY) -m pip install --quiet --disable-pip-version-check uv
	@$(UV) pip install --quiet --python $(PY) --compile-bytecode --editable . --group dev --constraint constraints.txt
	@rm -f $(BUILD)/ready-*
	@touch $@

MIGRATED := $(BUILD)/airflow/migrated-$(KEY)

$(MIGRATED): $(READY)
	@mkdir -p $(AIRFLOW_HOME)
	@$(AIRFLOW_ENV) $(PY) -m airflow db migrate > $(AIRFLOW_HOME)/migrate.log 2>&1 || { cat $(AIRFLOW_HOME)/migrate.log; exit 1; }
	@touch $@

TORCH := $(BUILD)/torch-$(KEY)

$(TORCH): $(READY)
	@echo "installing torch (once; 3 GB to load, 5 GB on disk)"
	@$(UV) pip install --quiet --python $(PY) --group torch --constraint constraints.txt
	@rm -f $(BUILD)/torch-*
	@touch $@

torch: $(TORCH)  ## install torch for the examples launch_torch_* and their tests: 5 GB (the demo does it by itself)

demo: $(MIGRATED) $(if $(findstring torch,$(DAG)),$(TORCH))  ## run a distributed app through Airflow: DAG=launch_local_demo, launch_docker_demo, launch_kubernetes_demo, launch_kubernetes_gang, launch_slurm_demo, launch_aws_batch_demo, launch_torch_ddp, launch_torch_search, launch_torch_accelerate, launch_torch_server
	@$(ENGINE) $(CLUSTER) $(SLURM) $(AIRFLOW_ENV) $(BATCH) $(PY) -m airflow dags test $(DAG)

gpu: $(TORCH)  ## train on the GPUs of this machine, in at most five minutes: ARGS=--cpu pretends two GPUs
	@$(PY) tools/gpu_training.py $(ARGS)

demo-ui: $(MIGRATED)  ## start Airflow with the example DAGs in a browser: PORT=8793
	@$(AIRFLOW_ENV) $(PY) tools/demo_ui.py $(PORT)

test: $(READY)  ## run the tests; shows what was skipped and why: ARGS="-k retry"
	$(PY) -m pytest -n $(JOBS) --ignore=tests/live --ignore=tests/browser $(ARGS)

soak: $(READY)  ## repeat what is left to chance as often as CONTRIBUTING.md, also in a real Airflow; about an hour
	LAUNCH_SOAK=1 $(PY) -m pytest -n $(JOBS) --ignore=tests/live --ignore=tests/browser $(ARGS)
	LAUNCH_SOAK=1 LAUNCH_TRIGGERER_RESTARTS=20 $(PY) -m pytest tests/live $(ARGS)

live: $(READY)  ## run tasks in a real Airflow, end them in every way, and check what is alive; twenty minutes
	$(PY) -m pytest tests/live $(ARGS)

CELERY := $(BUILD)/celery-$(KEY)

$(CELERY): $(READY)
	@$(UV) pip install --quiet --python $(PY) --group celery --constraint constraints.txt
	@rm -f $(BUILD)/celery-*
	@touch $@

celery: $(CELERY)  ## the same on Postgres and Celery: kill worker, triggerer and scheduler; as root on Debian, five minutes
	$(PY) -m pytest tests/live/test_celery.py $(ARGS)

BROWSER := $(BUILD)/browser-$(KEY)

$(BROWSER): $(READY)
	@test -x "$$(command -v chromium)" || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } \
	  || echo "chromium cannot be installed here, so the tests are skipped; on Debian, root can install it"
	@$(UV) pip install --quiet --python $(PY) --group browser --constraint constraints.txt
	@rm -f $(BUILD)/browser-*
	@test ! -x "$$(command -v chromium)" || touch $@

browser: $(BROWSER)  ## use forms and tasks of a real Airflow in Debian's chromium, without a screen; LAUNCH_PICTURES=docs/pictures takes pictures
	$(PY) -m pytest tests/browser $(ARGS)

RAY := $(BUILD)/ray-$(KEY)

$(RAY): $(READY)
	@echo "installing Ray in an environment of its own, $(BUILD)/ray (once)"
	@$(UV) venv --quiet --allow-existing --python $(PY) $(BUILD)/ray
	@$(UV) pip install --quiet --python $(BUILD)/ray/bin/python --compile-bytecode --editable . --group test --group engines 'ray[default]' --constraint constraints.txt
	@rm -f $(BUILD)/ray-*
	@touch $@

ray: $(RAY)  ## run the contract of the plug-in for Ray, on a cluster that the tests start and end: ARGS="-k logs"
	$(BUILD)/ray/bin/python -m pytest tests/plugins/test_ray.py $(ARGS)

versions: $(READY)  ## run the tests on older versions of Airflow, each in its environment below .build/versions: ARGS="3.1 --few"
	$(PY) tools/versions.py $(ARGS)

engine: $(READY)  ## build the images of tests and demo in the Docker engine; ARGS=status, start, clean, stop
	@$(PY) -m tests.engines.docker $(or $(ARGS),images)

cluster: $(READY)  ## show which Kubernetes cluster the tests use; ARGS=start, build, images, clean, stop
	@$(PY) -m tests.engines.kubernetes $(or $(ARGS),status)

lint: $(READY)  ## style, formatting and the layers of the imports
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/lint-imports --cache-dir $(BUILD)/cache/import-linter

types: $(READY)  ## mypy, strict
	$(VENV)/bin/mypy

gen: $(READY)  ## write the generated pages anew
	$(PY) tools/gen.py

docs: $(READY)  ## check the pages: links, code blocks, generated parts; show the next changelog
	$(PY) -m pytest -q tests/repo/test_docs.py tests/repo/test_generated.py
	$(VENV)/bin/towncrier build --draft --version next

SITE := $(BUILD)/site-$(KEY)

$(SITE): $(READY)
	@$(PY) -c 'import sys; sys.version_info >= (3, 11) or sys.exit(f"make site needs Python 3.11 or newer, $(VENV) has {sys.version.split()[0]}; remove it, then use make PYTHON=...")'
	@$(UV) pip install --quiet --python $(PY) --group site --constraint constraints.txt
	@rm -f $(BUILD)/site-*
	@touch $@

site: $(SITE)  ## build the site of the documentation, below .build/site; a warning is an error; needs Python 3.11
	@rm -rf $(BUILD)/site
	$(PY) -m sphinx -b dirhtml -E -W --keep-going -q -c docs -d $(BUILD)/cache/sphinx . $(BUILD)/site
	@echo "file://$(BUILD)/site/index.html"

bench: $(READY)  ## measure speed side by side with the peers, into docs/benchmarks.md: ARGS="imports logs"
	$(PY) bench/run.py $(ARGS)

constraints: $(READY)  ## pin the newest versions that fit, for every Python, in constraints.txt
	@echo "# What the tests ran with; written by: make constraints. Several lines of one package are for different Pythons." > $(BUILD)/constraints.txt
	$(UV) pip compile --quiet pyproject.toml --group dev --group neighbours --group site --group browser --all-extras --universal --python-version 3.10 --upgrade \
	  --no-header --no-annotate --no-emit-index-url >> $(BUILD)/constraints.txt
	mv $(BUILD)/constraints.txt constraints.txt

build: $(READY)  ## wheel and sdist into dist/
	rm -rf dist
	$(PY) -m build --no-isolation --outdir dist .

release-check: $(READY)  ## check what a release publishes, below .build/release; needs the network: ARGS="wheel audit"
	$(PY) tools/release_check.py $(ARGS)

clean:  ## remove everything the tasks made
	rm -rf $(BUILD) dist
