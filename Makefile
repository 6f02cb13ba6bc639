# Everything a new machine needs is Python 3.11+ and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A process for each core, four at most: more would only disturb the tests that look at times.
PARALLEL := --numprocesses auto --maxprocesses 4 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help demo test lint test-tools test-vllm test-dynamo test-sglang bench fuzz lock clean

help: ## Show this help
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/installed ## Replay the shipped corpus against the simulated endpoint (half a minute)
	$(BIN)/agentx run --mock --concurrency 8 --duration 20s --time-scale 0.25 --out runs

test: $(VENV)/dev-installed lint ## Lint, types, import rules and tests (under 5 minutes)
	$(BIN)/python -m pytest $(PARALLEL) --ignore tests/harness/sweep --ignore tests/actions --ignore tests/docker

lint: $(VENV)/dev-installed ## ruff, mypy --strict, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test-tools: $(VENV)/dev-installed ## Sweeps, the CI action and the containers: every command and step in them, run
	$(BIN)/python -m pytest $(PARALLEL) tests/harness/sweep tests/actions tests/docker

test-vllm: $(VENV)/dev-installed ## Suite against real vLLM (CPU build, installed into its own environment)
	AGENTX_REAL_SERVERS=vllm $(BIN)/python -m pytest tests/servers/test_vllm.py tests/servers/test_server_metrics.py tests/servers/test_sweep.py --timeout 1500

test-sglang: $(VENV)/dev-installed ## Suite against real SGLang (CPU, stand-in kernels; skipped with the reason where it can't be installed)
	AGENTX_REAL_SERVERS=sglang $(BIN)/python -m pytest tests/servers/test_sglang.py -rs --timeout 1500

test-dynamo: $(VENV)/dev-installed ## Suite against the real Dynamo frontend with two mock engines
	AGENTX_REAL_SERVERS=dynamo $(BIN)/python -m pytest tests/servers/test_dynamo.py tests/servers/test_server_metrics.py tests/servers/test_sweep.py tests/servers/test_compose.py --timeout 900

bench: $(VENV)/dev-installed ## All benchmarks; writes benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks

fuzz: $(VENV)/dev-installed ## Coverage-guided fuzzing of the stream parser (five minutes)
	$(BIN)/python -m pip install --quiet atheris
	$(BIN)/python tests/replay/fuzz_stream.py -max_total_time=300

lock: $(VENV)/dev-installed ## Lock the packages of the images by hash (docker/*.lock)
	@$(BIN)/python -m pip install --quiet uv
	cd docker && ../$(BIN)/uv pip compile ../pyproject.toml --universal --python-version 3.13 --generate-hashes -q -U \
	  --custom-compile-command "make lock" -o requirements.lock
	cd docker && echo 'hatchling>=1.25' | ../$(BIN)/uv pip compile - --universal --python-version 3.13 --generate-hashes -q -U \
	  --custom-compile-command "make lock" -o build.lock
	cd docker && ../$(BIN)/uv pip compile dynamo.in --python-version 3.12 --python-platform x86_64-manylinux_2_28 \
	  --generate-hashes -q -U --custom-compile-command "make lock" -o dynamo.lock

clean: ## Remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "agentx needs Python 3.11 or newer; set PYTHON=python3.12, say"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv is missing: apt-get install python3-venv"; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	@echo "installing agentx into $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/dev-installed: pyproject.toml | $(VENV)/installed
	@echo "installing the development tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@
