# What each target does: `make help`.

PYTHON ?= python3
# cpu: vLLM for CPUs. cuda: vLLM as the index has it, for GPUs. none: without vLLM.
# Only cpu is tested by this project's CI.
VLLM ?= cpu
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup setup-clients serve test test-newest lint docs docs-serve format typecheck fuzz soak audit sbom wheel wheel-check proto check-native bench figures demo-model demo-embedding lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | awk -F'|' '{ printf "  make %-14s %s\n", $$1, $$2 }'

# Quick where nothing changed: scripts/setup compares contents with what it last worked from.
setup: ## .venv with every locked package and the extension
	@$(PYTHON) -m scripts.setup --vllm $(VLLM)

# Apart from `setup`: only the tests need them.
setup-clients: setup ## the clients that the tests drive, each in its environment
	@$(PYTHON) -m scripts.setup --clients

serve: setup ## the server, on the demo models; ARGS adds options
	$(BIN)/openai-frontend serve --model-repository model_repository $(ARGS)

# Python's cache of compiled modules: without it, each worker and gateway compiles all of ours.
test: setup-clients ## all tests; ARGS="-k name" for some
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n auto $(ARGS)

test-newest: setup ## tests of the gateway without vLLM, with the newest packages in range
	$(BIN)/python -m scripts.newest $(ARGS)

lint: typecheck ## ruff, mypy, the import contracts, clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/clang-format --dry-run -Werror native/*.cc native/*.h

docs: setup ## build/site: the documentation site; fails on any warning
	@$(PYTHON) -m scripts.setup --tool docs
	@$(BIN)/python -m scripts.docs_site build

docs-serve: setup ## the documentation site on http://127.0.0.1:8000, rebuilt on changes
	@$(PYTHON) -m scripts.setup --tool docs
	@$(BIN)/python -m scripts.docs_site serve

typecheck: setup ## mypy, strict
	$(BIN)/mypy

format: setup ## rewrite the sources as lint wants them
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i native/*.cc native/*.h

fuzz: setup ## each parser of untrusted bytes for SECONDS=600; TARGET=name for one, ARGS=--keep
	@$(PYTHON) -m scripts.setup --tool fuzz
	$(BIN)/python -m tests.fuzz.campaign --seconds $(or $(SECONDS),600) \
		$(TARGET:%=--target %) $(ARGS)

soak: setup ## random load on a gateway for MINUTES=20 or HOURS=; ARGS=--seed=1 plays one again
	$(BIN)/python -m tests.resilience.soak $(if $(HOURS),--hours $(HOURS),--minutes $(or $(MINUTES),20)) $(ARGS)

audit: setup ## what is known against the locked packages
	@$(PYTHON) -m scripts.setup --tool supply
	@$(BIN)/python -m scripts.supply audit

sbom: setup ## build/sbom.cdx.json: the locked packages, in CycloneDX
	@$(PYTHON) -m scripts.setup --tool supply
	@$(BIN)/python -m scripts.supply sbom

wheel: setup ## dist/: the wheel of the last commit, the same bytes wherever it is built
	@$(BIN)/python -m scripts.wheel

wheel-check: setup ## fail unless two builds of that wheel are equal and name no local path
	@$(BIN)/python -m scripts.wheel_check

proto: setup ## compile Triton's model_config.proto, once it has changed
	@$(PYTHON) -m scripts.setup --tool protoc
	.venv/tools/protoc/bin/python -m grpc_tools.protoc -Iopenai_frontend/cli model_config.proto \
		--descriptor_set_out=openai_frontend/cli/model_config.binpb

check-native: setup ## the tests of the core under AddressSanitizer
	$(BIN)/python -m scripts.check_native $(ARGS)

bench: setup ## the benchmarks; ARGS chooses
	$(BIN)/python -m benchmarks $(ARGS)

figures: setup ## size, shape and coupling of the package as numbers
	@$(BIN)/python -m scripts.figures

demo-model: setup ## train the demo model anew
	$(BIN)/python scripts/train_demo_model.py $(ARGS)

demo-embedding: setup ## train the demo embedding model anew
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.train_demo_embedding $(ARGS)

lock: setup ## resolve pyproject.toml into requirements/; ARGS=--keep keeps the pins
	$(BIN)/python -m scripts.setup.lock $(ARGS)

clean: ## remove what these targets made
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
