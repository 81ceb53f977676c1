# `make` lists the targets. Whatever runs something sets up first, which takes no time when nothing changed.
.DEFAULT_GOAL := help
.PHONY: help setup setup-current demo demo-current demo-extreme check check-tests ci docs test test-current test-connect test-tables test-clusters test-kubernetes archive dist lint format unit benchmark clean

BIN := .venv/bin
# Tests and benchmarks start hundreds of processes, and where bytecode may not be kept each compiles sparkdl for a second.
export PYTHONDONTWRITEBYTECODE :=
# One worker more than the two cores that this is made for: tests of clusters wait for a part of their time.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder --durations 25 --ignore tests/tables --ignore tests/clusters --ignore tests/kubernetes
TESTS ?= tests
# How many parts of YARN and HDFS are killed.
KILLS ?= 6
# Those of jobs, which a client of a Spark Connect server runs as well.
OF_JOBS := $(patsubst %,tests/cluster/test_%.py,estimator estimator_inputs train score compress students train_extreme prepare prepare_sparse prepare_faults train_extreme_ranker tasks)
# One path through each job, for `make check`: prepare, train, compress and score, a search, MACH, a loop of the user's
# own, and the command's dry runs.
PATHS := tests/cluster/test_pipeline.py $(foreach name,make_a_model_lighter search_for_settings very_many_classes run_your_own_loop,\
  'tests/cluster/test_examples.py::test_it_runs_as_it_stands_and_is_short[$(name)]')
# What it leaves to `make test`, and most of it to `make ci`: the files that take a core seconds, which are three quarters of
# what `tests/unit` takes. `pytest --durations 0 tests/unit` tells which those are.
LONG := $(patsubst %,tests/unit/%.py,$(addprefix training/,asynchronous/test_driver asynchronous/test_inputs \
  asynchronous/test_sandblaster asynchronous/test_decoupled_diloco recipes/test_adapters_beside recipes/test_fisher_noise \
  test_fine_tuning tasks/test_tasks tasks/test_causal_networks checks/test_compiled_step checks/test_tried_model) \
  $(addprefix data/,test_scale test_parquet_bytes preparing/test_staging sources/test_fetch sources/test_xc_lines reading/test_loader) \
  $(addprefix extreme/test_,decode ensemble clusters linear light_networks ranker meta_model loops) \
  $(addprefix layouts/test_,pipeline_plan tensor_plan front) $(addprefix models/test_,export packages reference on_disk) \
  $(addprefix forms/test_,onnx_export network_forms) $(addprefix storage/test_,failures folders large_files) \
  $(addprefix tracking/test_,registry run delivery store surroundings) $(addprefix cluster/test_,logs own_process) \
  $(addprefix test_,package extras site import forks) $(addprefix jobs/benchmarks/test_,extreme hybrid) \
  serving/test_http_server collectives/averaging/test_compression planning/test_layout_costs scoring/test_pyfunc)
# What CI leaves to `make test`, half of it all: demos, notebooks and jobs as they are submitted, kills and outages by the
# dozen, searches, benchmarks. It has to be done within an hour also on a machine of half the speed.
LONGEST := tests/end_to_end $(addprefix tests/ranks/training/test_,memory.py sharded_ist.py adapters.py ranking.py named_inputs.py) \
  tests/unit/data/preparing/test_staging.py tests/unit/data/test_scale.py tests/ranks/jobs \
  $(patsubst %,tests/unit/training/asynchronous/test_%.py,driver inputs sandblaster) \
  $(patsubst %,tests/cluster/test_%.py,faults outages coming_and_going hosts gpus killed_parts interrupts \
  asynchronous_benchmark prepare_benchmark score_benchmark serve_benchmark \
  own_modules known_rows estimator_inputs tune stacking prepare_sparse prepare_faults compress encoded_images \
  examples chosen_layout serving splits preprocessing standalone in_place language_models fine_tuning tokens labels \
  recommenders students train_extreme_ranker)
# What of it CI tests on the current stack: rows and networks, which are made of its NumPy, pyarrow and PyTorch, what
# crosses from one stack to the other, and what only that one has, Spark Connect among it.
OF_CURRENT := $(addprefix tests/unit/,data inputs models preprocessing scoring) \
  $(patsubst %,tests/cluster/test_%.py,other_stack connect resources)
# Of these the first that works: one may be there in name only, or too old to start the set-up.
PYTHON ?= $(or $(shell for name in python3.11 python3; do $$name -c '' 2> /dev/null && echo $$name && break; done),python3)

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

setup:  ## make .venv: pinned packages, Horovod, Java if there is none
	@$(PYTHON) .setup/install.py

setup-current:  ## make .venv-current: today's Spark, NumPy and pyarrow, without Horovod and Petastorm
	@$(PYTHON) .setup/install.py current

demo: setup  ## Fashion-MNIST from raw files to a scored table
	@$(BIN)/python jobs/demo.py conf/fashion_mnist.yaml

demo-current: setup-current  ## the same on the current stack
	@.venv-current/bin/python jobs/demo.py conf/fashion_mnist.yaml

demo-extreme: setup  ## WordNet: 19,400 classes by hashed meta-models
	@$(BIN)/python jobs/demo.py conf/wordnet.yaml

check: setup  ## what a change has to pass at least, in three to four minutes: lint, types, unit tests, a path through each job
	@$(MAKE) --no-print-directory -j 2 lint check-tests

# Nice to mypy, which is one process: it would be the last to end, and leave a core idle.
check-tests: setup
	@nice $(BIN)/python -m pytest $(PARALLEL) $(addprefix --ignore ,$(LONG)) tests/unit $(PATHS)

test: setup  ## everything: lint, types, unit, cluster and end-to-end tests
	@$(MAKE) --no-print-directory -j 2 lint archive
	@$(BIN)/python -m pytest $(PARALLEL) tests

ci: setup  ## what a merge has to pass, in 40 minutes: `make test` without the longest, and a part of `make test-current`
	@$(MAKE) --no-print-directory -j 2 lint archive
	@$(BIN)/python -m pytest $(PARALLEL) $(addprefix --ignore ,$(LONGEST)) tests
	@$(MAKE) --no-print-directory test-current TESTS="$(OF_CURRENT)"

test-current: setup-current  ## the same tests on the current stack
	@.venv-current/bin/python -m pytest $(PARALLEL) $(TESTS)

test-connect: setup-current  ## the tests of jobs, from clients of Spark Connect servers
	@.venv-current/bin/python -m pytest $(PARALLEL) --connect $(OF_JOBS)

test-tables: setup  ## Delta Lake, Iceberg and S3, whose jars come from Maven Central
	@$(BIN)/python -m pytest tests/tables

test-clusters: setup setup-current  ## YARN and HDFS on this machine, whose jars come from Maven Central, with both stacks
	@$(BIN)/python -m pytest --kills $(KILLS) tests/clusters
	@.venv-current/bin/python -m pytest --kills $(KILLS) tests/clusters

test-kubernetes: setup  ## Kubernetes' API server on this machine, which Go builds once, with Spark 3.5; as root
	@$(BIN)/python -m pytest tests/kubernetes

# Made while the types are checked, which leaves a core idle.
archive: setup
	@$(BIN)/python tests/class_archive.py > /dev/null

# The wheel comes from the source distribution: nothing else that is in this folder gets into it.
dist: setup  ## the source distribution and the wheel, in build/dist
	@rm -rf build/dist && mkdir -p build/dist
	@$(BIN)/python -c "from setuptools.build_meta import build_sdist; build_sdist('build/dist')" > build/dist.log
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/dist build/dist/*.tar.gz

docs: setup  ## the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

lint: setup  ## ruff and mypy
	@$(BIN)/python -m ruff check
	@$(BIN)/python -m ruff format --check
	@$(BIN)/python -m mypy sparkdl jobs .setup

format: setup  ## let ruff rewrite what it can
	@$(BIN)/python -m ruff check --fix
	@$(BIN)/python -m ruff format

unit: setup  ## the tests that need no Spark (a minute)
	@$(BIN)/python -m pytest $(PARALLEL) tests/unit

benchmark: setup  ## every benchmark, as tables
	@$(BIN)/python jobs/benchmark.py

clean:  ## remove both environments and the tools' caches; what jobs wrote (output/) stays
	@rm -rf .venv .venv-current build .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
