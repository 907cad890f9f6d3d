# `make` alone lists the targets. Everything is installed into .venv, with the versions in constraints.txt.

# The first Python that is new enough; another one: make PYTHON=/path/to/python3.12 demo
PYTHON ?= $(shell for each in python3 python3.13 python3.12 python3.11; do \
	"$$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$each" && break; done)
VENV := .venv
# -qq: errors only.
PIP := $(VENV)/bin/python -m pip install -qq --disable-pip-version-check --no-input -c constraints.txt
# What the machine that a wheelhouse is for has, and is.
MACHINE ?= aarch64
FOR ?= 3.11
ROLE ?= device
PACK = build/packing/bin/python -m pip --disable-pip-version-check --no-input

# A link or heading that is not there, or a page that is not in the contents, is an error.
SITE = rm -rf build/site && $(VENV)/bin/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env \
	--conf-dir docs --doctree-dir build/site-cache . build/site

# What the tests need of the system, and how they use its cores: whole files to each worker, the longest first.
TESTED_WITH = mosquitto prometheus shellcheck systemd chromium chromium-driver
BOTH_CORES = --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# The tests that start processes, brokers, servers or browsers, and so might depend on how fast the machine is.
PROCESS_TESTS = tests/live tests/baseline tests/fleet_web tests/examples tests/deploy tests/docs/test_first_hour.py \
	tests/docs/test_simulation_page.py tests/fleet_sim/datasets/test_datasets.py tests/fleet_sim/demo \
	tests/fleet_sim/engines tests/fleet_sim/test_tracked.py \
	tests/edge_agent/inference tests/edge_agent/joining tests/edge_agent/limits/test_readings.py \
	tests/edge_agent/releases tests/edge_agent/setup tests/edge_agent/training tests/edge_agent/test_agent_metrics.py \
	tests/edge_agent/test_imports.py tests/coordinator/admin tests/coordinator/console/test_strategy_commands.py \
	tests/coordinator/jobs/test_data.py tests/coordinator/machine/test_full_disk.py \
	tests/coordinator/machine/test_steps.py tests/coordinator/models/test_torchvision_models.py \
	tests/coordinator/rounds/test_preparing.py tests/coordinator/tracking tests/hierarchy/arranging/test_imports.py \
	tests/sojourn/brokers tests/sojourn/joining tests/sojourn/links tests/sojourn/metrics \
	tests/sojourn/model/test_graphs.py tests/sojourn/node/test_name_clash.py tests/sojourn/parts/test_custom_parts.py \
	tests/sojourn/protocol/test_decoders.py tests/sojourn/store/test_journal.py \
	tests/sojourn/test_cli.py tests/sojourn/test_logs.py tests/sojourn/test_notify.py tests/sojourn/test_processes.py tests/sojourn/test_silence.py
# The tests that compile a model with torch, nearly all of them to simulate a fleet. The others are fast.
COMPILING_TESTS = tests/fleet_sim/test_*.py tests/fleet_sim/console tests/fleet_sim/papers tests/fleet_sim/world \
	tests/coordinator/compiling tests/coordinator/finishers tests/coordinator/releases \
	tests/coordinator/rounds/test_given_weights.py tests/coordinator/rounds/test_rebuilding.py \
	tests/coordinator/console/test_mandate_commands.py tests/docs/test_readme_examples.py \
	tests/sojourn/model/test_norm_layers.py
FAST = $(addprefix --ignore-glob=,$(PROCESS_TESTS) $(COMPILING_TESTS))

.DEFAULT_GOAL := help
.PHONY: help demo install test test-fast baseline test-repeat test-load coverage test-deploy test-homeassistant check docs wheel wheelhouse sbom clean

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-19s%s\n", $$1, $$2 }' Makefile

demo: $(VENV)/demo.stamp  ## Train one model over a small fleet on this machine, over real MQTT
	@$(VENV)/bin/sojourn demo

install: $(VENV)/dev.stamp  ## Install Sojourn, and what its tests and checks need

test: $(VENV)/dev.stamp  ## Run all tests
	@.ci/install-packages $(TESTED_WITH)
	@.ci/install-axe
	@$(VENV)/bin/python -m pytest $(BOTH_CORES) --durations=20

test-fast: $(VENV)/dev.stamp  ## Run the tests that start no process and compile no model: under a minute
	@$(VENV)/bin/python -m pytest $(BOTH_CORES) $(FAST)

baseline: $(VENV)/dev.stamp  ## Replace tests/baseline/baseline.tar.xz with one of this code: when the wire or a journal changes
	@.ci/install-packages mosquitto
	@$(VENV)/bin/python -m tests.baseline.make

# N: runs; BUSY: busy processes next to each; TESTS: files or folders, by default all; ORDER=--in-order: not a random one.
test-repeat: N ?= 10
test-repeat: BUSY ?= 0
test-repeat: $(VENV)/dev.stamp  ## Run all tests N times and list those that did not pass every time: make test-repeat N=10 BUSY=4
	@.ci/install-packages $(TESTED_WITH)
	@.ci/install-axe
	@$(VENV)/bin/python -m tests.repeat --runs $(N) --busy $(BUSY) $(ORDER) -- $(BOTH_CORES) $(TESTS)

# More workers than usual: they are busy as well, and leave less of the cores to the four others.
test-load:  ## Run the tests that start processes once, next to four busy processes
	@$(MAKE) --no-print-directory test-repeat N=1 BUSY=4 ORDER=--in-order TESTS="$(PROCESS_TESTS)" \
		BOTH_CORES="$(BOTH_CORES) --maxprocesses 6 --numprocesses 6"

# Counting takes a third longer, so it is not a part of every run.
coverage: $(VENV)/dev.stamp  ## Run all tests and report their coverage of lines and branches
	@.ci/install-packages $(TESTED_WITH)
	@.ci/install-axe
	@$(VENV)/bin/python -W 'ignore:Unable to activate pytest branch coverage' -m slipcover --json --out .coverage.json -m pytest \
		$(BOTH_CORES)
	@$(VENV)/bin/python .ci/least-covered .coverage.json

test-deploy: $(VENV)/dev.stamp  ## Test the install scripts in a clean Debian; needs root, takes minutes
	@.ci/install-packages mmdebstrap systemd-container
	@tests/deploy/chroot.sh
	@tests/deploy/booted.sh

# The newest Home Assistant for Python 3.11 runs; of a later one, which needs a later Python, two files are read.
HOME_ASSISTANT := build/homeassistant
HOME_RUN := homeassistant==2024.3.3 paho-mqtt==1.6.1 janus==1.0.0 numpy==1.26.0
HOME_READ := homeassistant==2026.2.3
HOME_READ_FOR := 3.14

test-homeassistant: $(VENV)/dev.stamp  ## Test a fleet with a real Home Assistant; takes minutes
	@.ci/install-packages mosquitto
	@"$(PYTHON)" -m venv $(HOME_ASSISTANT)/venv
	@$(HOME_ASSISTANT)/venv/bin/python -m pip install -qq --disable-pip-version-check --no-input --prefer-binary $(HOME_RUN)
	@$(HOME_ASSISTANT)/venv/bin/python -m pip download -qq --disable-pip-version-check --no-input --no-deps \
		--only-binary=:all: --python-version $(HOME_READ_FOR) --dest $(HOME_ASSISTANT)/later $(HOME_READ)
	@$(VENV)/bin/python -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2], sys.argv[3:])' \
		$(HOME_ASSISTANT)/later/homeassistant-*.whl $(HOME_ASSISTANT)/later \
		homeassistant/components/mqtt/schemas.py homeassistant/components/mqtt/const.py
	@$(VENV)/bin/python -m tests.home_assistant.check $(HOME_ASSISTANT)/venv/bin/python \
		$(HOME_ASSISTANT)/later/homeassistant/components/mqtt

check: $(VENV)/dev.stamp  ## Check the code (linter, types, import rules), the words and the pages
	$(VENV)/bin/python .ci/check-words
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(SITE)

docs: $(VENV)/dev.stamp  ## Build a site of the pages: build/site/index.html
	@$(SITE)

# What an earlier build left would be packed, too.
wheel:  ## Make the wheel that is copied to other machines: dist/sojourn-*.whl
	@rm -rf build/lib build/bdist.* dist/sojourn-*.whl
	@"$(PYTHON)" -m venv build/packing
	@$(PACK) wheel -qq --no-deps --wheel-dir dist .
	@ls dist/sojourn-*.whl

wheelhouse: wheel  ## Make all wheels for a machine without internet: dist/wheels; make wheelhouse ROLE=coordinator MACHINE=x86_64 FOR=3.13
	@rm -rf dist/wheels && mkdir dist/wheels && cp dist/sojourn-*.whl dist/wheels
	@$(PACK) download -qq --only-binary=:all: --platform manylinux_2_28_$(MACHINE) --platform manylinux_2_27_$(MACHINE) \
		--platform manylinux_2_17_$(MACHINE) --platform manylinux2014_$(MACHINE) --python-version $(FOR) \
		$(if $(filter coordinator,$(ROLE)),--extra-index-url https://download.pytorch.org/whl/cpu) \
		--dest dist/wheels --require-hashes --no-deps --requirement deploy/$(ROLE)/requirements.txt
	@echo "dist/wheels: for Python $(FOR) on $(MACHINE) ($(ROLE))"

sbom: $(VENV)/dev.stamp  ## Write the bills of materials of this version into deploy/sbom
	@$(VENV)/bin/python -m deploy.make_sbom

clean:  ## Remove everything that make created, including .venv
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage.json
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Torch first: it is most of the download, and what comes after it takes the build that is there.
$(VENV)/torch.stamp: constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "Sojourn needs Python 3.11 or newer, and none was found. Name one: make PYTHON=/path/to/python3" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Sojourn needs Python 3.11 or newer; $(PYTHON) is: $$("$(PYTHON)" --version 2>&1)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "Installing into $(VENV). The first time this takes a few minutes; torch is the largest part."
	@"$(PYTHON)" -m venv $(VENV)
	@$(PIP) torch torchvision
	@touch $@

$(VENV)/demo.stamp: $(VENV)/torch.stamp pyproject.toml
	@echo "Installing Sojourn and what a coordinator needs ..."
	@$(PIP) -e '.[cloud,broker]'
	@touch $@

$(VENV)/dev.stamp: $(VENV)/torch.stamp pyproject.toml
	@echo "Installing Sojourn and what its tests and checks need ..."
	@$(PIP) -e '.[dev]'
	@.ci/install-axe
	@touch $@ $(VENV)/demo.stamp
