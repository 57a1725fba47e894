# What each target does: `make help`.

PYTHON ?= python3
# cpu: vLLM for CPUs. cuda: vLLM for NVIDIA GPUs (make gpu-check tests it). none: without vLLM.
VLLM ?= cpu
REPLICAS ?= 3
BIN := .venv/bin
IMAGE ?= openai-frontend:$(or $(TARGET),cpu)
# These have targets of their own, as the scale tests have: a short run of the benchmark beside
# vLLM, the clients that need environments of their own, and a browser.
PEERS := tests/api/benchmarks/test_peers_engine.py
CLIENTS := tests/clients/environments
BROWSER := tests/browser
AGENTS := $(CLIENTS)/test_agents.py

.DEFAULT_GOAL := help
.PHONY: help help-all setup setup-agents setup-browser setup-clients serve ray test test-agents test-browser test-claude-code test-clients test-scale test-peers test-oldest test-newest compat lint docs docs-serve format typecheck fuzz soak check-constraints audit sbom wheel wheel-check wheels image push-image proto check-native check-images gpu-check bench bench-scale figures core demo-model demo-embedding demo-classifier demo-speech demo-vision lock clean

help: ## show the common targets
	@sed -n 's/^\([a-z-]*\):.* ## /\1|/p' Makefile | awk -F'|' '{ printf "  make %-14s %s\n", $$1, $$2 }'

help-all: ## show all targets
	@sed -n 's/^\([a-z-]*\):.* ###* /\1|/p' Makefile | awk -F'|' '{ printf "  make %-18s %s\n", $$1, $$2 }'

# Quick where nothing changed: scripts/setup compares contents with what it last worked from.
setup: ## install the locked packages and build the extension in .venv
	@$(PYTHON) -m scripts.setup --vllm $(VLLM)

# Apart from `setup`: only the tests need them.
setup-clients: setup ### install the clients that tests and benchmarks drive, each in its own environment
	@$(PYTHON) -m scripts.setup --clients

# Apart from `setup-clients`: 1.2 GB for tests that few changes need.
setup-agents: setup ### install the coding agents that tests drive, from npm
	@$(PYTHON) -m scripts.setup --npm agents

# 0.5 GB: Chromium from Debian and Playwright from PyPI, without root.
setup-browser: setup ### install the browser that tests of the pages drive
	@$(PYTHON) -m scripts.setup --tool browser

serve: setup ## start the server with the demo models; ARGS adds options
	$(BIN)/openai-frontend serve --model-repository model_repository $(ARGS)

# Ray reads the variables when it starts, which `serve run` does.
ray: setup-clients ### start REPLICAS=3 gateways with the demo models and Ray Serve on this machine
	$(BIN)/openai-frontend ray init model_repository --output build/ray --force --num-cpus 0 --min-replicas $(REPLICAS) --max-replicas $(REPLICAS)
	@echo "Once it is ready: curl http://127.0.0.1:9000/v1/chat/completions -H 'Content-Type: application/json' -d '{\"model\": \"demo\", \"messages\": [{\"role\": \"user\", \"content\": \"What is Triton?\"}]}'"
	set -a; . build/ray/ray.env; PATH=$(CURDIR)/$(BIN)/../clients/ray/bin:$$PATH serve run --address local build/ray/gateway.yaml

# Python's cache of compiled modules: without it, each worker and gateway compiles all of ours.
test: setup ## run all tests but those of the targets below; ARGS="-k name" selects some
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n auto --repeat-failures --ignore=tests/scale --ignore=$(PEERS) --ignore=$(CLIENTS) --ignore=$(BROWSER) $(ARGS)

test-clients: setup-clients ## test with clients in environments of their own, such as aiperf and LlamaIndex
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 0 --repeat-failures $(CLIENTS) $(ARGS)

test-agents: setup-agents ### run coding agents, such as pi and Qwen Code, against a gateway with a scripted model
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 0 --repeat-failures $(AGENTS) $(ARGS)

# Its licence is proprietary: nothing else installs it (0.4 GB).
test-claude-code: setup ### install Claude Code from npm under its own licence, and run it as test-agents does
	@$(PYTHON) -m scripts.setup --npm claude-code
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 0 --repeat-failures $(AGENTS) -k claude $(ARGS)

test-browser: setup setup-browser docs ### test the playground, /docs and the documentation site in Chromium
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 0 --repeat-failures $(BROWSER) $(ARGS)

test-scale: setup-clients ### test several gateways: behind routers, with Ray, the Helm chart; ARGS=--long
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 0 --repeat-failures tests/scale $(ARGS)

test-peers: setup-clients ### test the benchmark that compares the gateway with vLLM's servers
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 0 --repeat-failures $(PEERS) $(ARGS)

test-oldest: setup ### test the gateway without vLLM, with the oldest allowed packages
	$(BIN)/python -m scripts.version_ranges oldest $(ARGS)

test-newest: setup ### test the gateway without vLLM, with the newest allowed packages
	$(BIN)/python -m scripts.version_ranges newest $(ARGS)

compat: setup-clients ### run the engine tests with each vLLM of VLLM_VERSIONS="0.24 0.31"
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m scripts.vllm_versions $(or $(VLLM_VERSIONS),0.24 0.25 0.26 0.27 0.28 0.29 0.30 0.31 0.32) $(ARGS)

lint: typecheck ## run ruff, mypy, the import contracts, clang-format, hadolint and zizmor
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	$(BIN)/clang-format --dry-run -Werror native/*.cc native/*.h
	@$(PYTHON) -m scripts.setup --tool deploy
	.venv/tools/deploy/bin/hadolint deploy/docker/Dockerfile
	.venv/tools/deploy/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	.venv/tools/deploy/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	.venv/tools/deploy/bin/zizmor --offline --quiet .github

docs: setup ## build the documentation site in build/site; fails on warnings
	@$(PYTHON) -m scripts.setup --tool docs
	@$(BIN)/python -m scripts.docs_site build

docs-serve: setup ## serve the documentation site on http://127.0.0.1:8000; rebuilds on changes
	@$(PYTHON) -m scripts.setup --tool docs
	@$(BIN)/python -m scripts.docs_site serve

typecheck: setup ### run mypy in strict mode
	$(BIN)/mypy

format: setup ## format the sources
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i native/*.cc native/*.h

fuzz: setup ### fuzz each parser of untrusted bytes for SECONDS=600; TARGET=name selects one
	@$(PYTHON) -m scripts.setup --tool fuzz
	$(BIN)/python -m scripts.fuzz.campaign --seconds $(or $(SECONDS),600) \
		$(TARGET:%=--target %) $(ARGS)

soak: setup ## put random load on a gateway for MINUTES=20 or HOURS=; ARGS=--seed=1 repeats a run, ARGS=--media is only images and audio
	$(BIN)/python -m scripts.soak $(if $(HOURS),--hours $(HOURS),--minutes $(or $(MINUTES),20)) $(ARGS)

# Everything takes hours on two cores; ARGS="--walk --every=20" takes minutes and needs no engine.
check-constraints: setup ### validate answers of the demo model to thousands of patterns and JSON schemas
	$(BIN)/python -m scripts.constraint_corpus $(ARGS)

audit: setup ### report known vulnerabilities of the locked packages
	@$(PYTHON) -m scripts.setup --tool supply
	@$(BIN)/python -m scripts.supply audit

sbom: setup ### write the locked packages to build/sbom.cdx.json, in CycloneDX
	@$(PYTHON) -m scripts.setup --tool supply
	@$(BIN)/python -m scripts.supply sbom

# Without `setup`, which installs all that the gateway needs to run: building needs five packages.
wheel: ## build a reproducible wheel of the last commit in dist/
	@$(PYTHON) -m scripts.setup --tool build
	@$(PYTHON) -m scripts.wheel

wheel-check: ### fail unless two builds of that wheel are equal and name no local path
	@$(PYTHON) -m scripts.setup --tool build
	@$(PYTHON) -m scripts.wheel_check

# Without `setup`, which needs the Triton core: aarch64 has wheels of the gateway only.
wheels: ### build the wheels of this machine's architecture for all Pythons in dist/; needs Docker
	@$(PYTHON) -m scripts.setup --tool wheels
	.venv/tools/wheels/bin/cibuildwheel --output-dir dist

image: ## build the image of TARGET=cpu, gpu, triton-vllm or triton-trtllm; IMAGE= names it
	docker build --file deploy/docker/Dockerfile --target $(or $(TARGET),cpu) --tag $(IMAGE) \
		--build-arg PIP_EXTRA_INDEX_URL .

push-image: image ### build that image and push it to the registry in its name
	docker push $(IMAGE)

proto: setup ### compile the .proto files; needed after one changes
	@$(PYTHON) -m scripts.setup --tool protoc
	.venv/tools/protoc/bin/python -m grpc_tools.protoc -Iopenai_frontend/cli model_config.proto \
		--descriptor_set_out=openai_frontend/cli/model_config.binpb
	.venv/tools/protoc/bin/python -m grpc_tools.protoc -Iopenai_frontend/cli \
		-Iopenai_frontend/kserve/grpc service.proto health.proto --include_imports \
		--descriptor_set_out=openai_frontend/kserve/grpc/service.binpb

check-native: setup ## run the tests of the core under AddressSanitizer
	$(BIN)/python -m scripts.check_native $(ARGS)

check-images: setup ### resolve the pip steps of the images for their Python and system
	@$(BIN)/python -m scripts.check_images

# Looks for the GPU first: the set-up for CUDA downloads 4 GB.
gpu-check: ### check and measure the gateway on an NVIDIA GPU; ARGS=--cpu does so on the processor
	@$(if $(findstring --cpu,$(ARGS)),,nvidia-smi --list-gpus 2>/dev/null || { \
		echo "gpu-check: nvidia-smi reports no GPU: install its driver, or set ARGS=--cpu" >&2; exit 2; })
	@$(PYTHON) -m scripts.setup --vllm $(if $(findstring --cpu,$(ARGS)),cpu,cuda)
	$(BIN)/python -m scripts.gpu_check $(ARGS)

bench: setup ## run the benchmarks; ARGS=--help lists the options
	$(BIN)/python -m benchmarks $(ARGS)

bench-scale: setup-clients ### measure how routers keep prefixes; ARGS=--costs or --goals measures replicas
	$(BIN)/python -m benchmarks.scale.measure $(ARGS)

figures: setup ### print size, shape and coupling of the package
	@$(BIN)/python -m scripts.figures

# Needs NVIDIA's sources and a few of the system's libraries: docs/backends.md.
core: setup ### build a newer Triton core from the checkouts in SOURCES= into OUTPUT=build/triton
	@$(BIN)/python -m scripts.build_core --sources $(SOURCES) --output $(or $(OUTPUT),build/triton) $(ARGS)

demo-model: setup ### train the demo model
	$(BIN)/python scripts/train_demo_model.py $(ARGS)

demo-embedding: setup ### train the demo embedding model
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.train_demo_embedding $(ARGS)

demo-classifier: setup ### train the demo classifier
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.train_demo_classifier $(ARGS)

demo-speech: setup ### train the demo speech model
	@$(PYTHON) -m scripts.setup --tool speech
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.train_demo_speech $(ARGS)

demo-vision: setup ### train the demo vision model from the demo model
	OMP_NUM_THREADS=1 $(BIN)/python -m scripts.train_demo_vision $(ARGS)

lock: setup ### resolve pyproject.toml into requirements/; ARGS=--keep keeps existing pins
	$(BIN)/python -m scripts.setup.lock $(ARGS)

clean: ### remove everything that these targets create
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
