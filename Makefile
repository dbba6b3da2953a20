# The project's commands. `make help` lists them; everything runs in $(VENV), which `make setup` makes.

PYTHON ?= python3
VENV   ?= .venv

CLUSTERS     ?= 2
SOAK_SECONDS ?= 3600
SOAK_SEED    ?=
TRACE        ?=
BENCH        ?=
IMAGE        ?=
WHEELS       ?=
MUTANTS      ?=
PACKAGE      ?=

SHELL         := /bin/bash
.DEFAULT_GOAL := help
.SHELLFLAGS   := -eu -o pipefail -c

BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
USABLE  := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
CODE    := gpushare webhook controller deviceplugin certs gpushare_cli
PURE    := gpushare.names gpushare.identity gpushare.units gpushare.errors gpushare.model gpushare.wire gpushare.placement gpushare.cluster gpushare_cli.simulate gpushare_cli.kube_scores
CHECKED := $(CODE) localcluster testing release tests docs/site $(wildcard bench)

PYTEST  := $(BIN)/pytest --durations=10
SPREAD  := --numprocesses=auto --dist=worksteal
UNIT    := $(PYTEST) -q $(SPREAD) -m "not (e2e or browser or apiserver or lint or release)" --ignore=tests/e2e --ignore=tests/browser --ignore=tests/apiserver
ON_CLUSTERS := --numprocesses=$(CLUSTERS) --dist=loadfile --no-loadscope-reorder
BROWSER := $(PYTEST) -q -m browser tests/browser
PARTS   := provision unit apiserver browser e2e
# The commit that a change begins after: where it left upstream, or the last one.
BASE    = $$(base=$$(git merge-base HEAD '@{upstream}' 2>/dev/null) && [ "$$base" != "$$(git rev-parse HEAD)" ] && echo "$$base" || echo HEAD~1)
# Mutants are drawn from what the five commits before have changed too: the module of one small commit may have few tests next to it.
DRAWN   = $$(git rev-parse -q --verify "$(BASE)~5" || git rev-list --max-parents=0 HEAD | tail -n 1)
# Kubernetes' other version in `make release-check`; the first is the distribution's.
CURRENT := $(KUBEBUILDER_ASSETS)

LOCK := $(BIN)/uv pip compile --quiet --upgrade --universal --fork-strategy fewest --python-version 3.11 --generate-hashes \
        --no-emit-index-url --no-annotate --custom-compile-command 'make lock'

.NOTPARALLEL:
.PHONY: help setup lint fmt quick provision unit apiserver browser pictures e2e firstgpu soak mutants some-mutants laws occasional test check release-check \
        demo bench docs site image wheels krew architecture lock clean

help: ## list the commands
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | while IFS=$$'\t' read -r name text; do printf '  make %-13s  %s\n' "$$name" "$$text"; done

# $(call as_root,TARGET,COMMAND,ANYTHING): elsewhere it says that nothing was tested, and CI fails. ANYTHING: without root too.
define as_root
	@if [ "$$(uname -s)" = Linux ] && { [ "$$(id -u)" = 0 ] || [ -n '$(3)' ]; }; then \
	  echo '$(2)'; \
	  exec $(2); \
	elif [ "$${CI:-}" = true ]; then \
	  echo '$(1): it needs root on Linux, and CI never goes without it' >&2; \
	  exit 1; \
	else \
	  echo '************************************************************************'; \
	  echo '** NOT TESTED: $(1) needs root on Linux: sudo make $(1)'; \
	  echo '************************************************************************'; \
	fi
endef

setup: $(STAMP) ## make the virtual environment with all dependencies; done already if nothing changed

$(STAMP): pyproject.toml requirements/dev.txt
	@if ! $(PYTHON) -c '$(USABLE)' 2>/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo 'setup: installing python3-venv with apt-get'; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3 python3-venv >/dev/null; \
	fi
	@$(PYTHON) -c '$(USABLE)' 2>/dev/null || { \
	  echo 'setup: Python 3.11 or newer with the module venv is needed; on Debian: apt-get install python3-venv' >&2; \
	  echo 'setup: for another interpreter: make PYTHON=/path/to/python3' >&2; \
	  exit 1; \
	}
	@echo 'setup: installing dependencies into $(VENV), which takes a minute or two'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

lint: setup ## check style, types, who may import whom, spelling and links
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy $(CHECKED)
	$(BIN)/lint-imports
	$(BIN)/python -m release.house
	git ls-files -z | xargs -0 $(BIN)/codespell
	$(PYTEST) -q -m lint tests/docs

fmt: setup ## format the code
	$(BIN)/ruff format $(CHECKED)
	$(BIN)/ruff check --fix-only $(CHECKED)

quick: setup ## in less than a minute, the unit tests of PACKAGE=controller, or of what has changed since upstream or the last commit
	@packages="$(PACKAGE)"; \
	if [ -z "$$packages" ]; then \
	  packages=$$({ git diff --name-only "$(BASE)"; git ls-files --others --exclude-standard; } 2>/dev/null | sed -E 's,^tests/(unit/)?,,; s,/.*,,' | sort -u); \
	fi; \
	folders=; \
	for package in $$packages; do \
	  if [ -d "tests/unit/$$package" ]; then folders="$$folders tests/unit/$$package"; elif [ "$$package" = property ]; then folders="$$folders tests/property"; fi; \
	done; \
	folders="$${folders:-tests/unit}"; \
	echo "quick: $$folders"; \
	exec $(UNIT) --hypothesis-profile=quick $$folders

unit: setup ## tests that need no cluster; the pure part must be covered whole
	$(UNIT) tests $(addprefix --cov=,$(PURE)) --cov-branch --cov-fail-under=100 --cov-report=term:skip-covered

provision: setup ## Kubernetes and the other programs of a cluster, from the distribution's packages (root on Linux)
	$(call as_root,provision,$(BIN)/python -m localcluster.provision)

apiserver: $(if $(KUBEBUILDER_ASSETS),setup,provision) ## webhook and controller beside a real API server, without nodes (root, or KUBEBUILDER_ASSETS)
	$(call as_root,apiserver,$(PYTEST) -q -m apiserver $(ON_CLUSTERS) tests/apiserver,$(KUBEBUILDER_ASSETS))

browser: setup ## the dashboard in a real browser: Chromium, installed with apt-get where that can be done
	@found() { [ -n "$${CHROMIUM:-}" ] || command -v chromium-headless-shell || command -v chromium || command -v google-chrome; }; \
	if ! found >/dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo 'browser: installing chromium-headless-shell with apt-get'; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium-headless-shell fonts-dejavu-core >/dev/null; \
	fi; \
	if found >/dev/null; then \
	  echo '$(BROWSER)'; \
	  exec $(BROWSER); \
	elif [ "$${CI:-}" = true ]; then \
	  echo 'browser: there is no Chromium, and CI never goes without it' >&2; \
	  exit 1; \
	else \
	  echo '************************************************************************'; \
	  echo '** NOT TESTED: the dashboard needs Chromium. Install it, or give its  **'; \
	  echo '** path: make browser CHROMIUM=/path/to/chromium                      **'; \
	  echo '************************************************************************'; \
	fi

pictures: setup ## take the screenshots of the documents again
	SCREENSHOTS=docs/pictures $(BROWSER) -k any_size

e2e: provision ## end-to-end tests on real clusters on this machine (root on Linux); CLUSTERS=1 for one after another
	$(call as_root,e2e,$(PYTEST) -v -m "e2e and not release and not soak" $(ON_CLUSTERS) tests/e2e tests/localcluster)

firstgpu: setup ## the commands of docs/install.md, typed and timed: from an empty cluster to the first shared GPU (root on Linux)
	$(BIN)/python -m tests.e2e.first_gpu

mutants: setup ## change the product in one place at a time: do the tests notice? MUTANTS='--sample 200 --seed 1' tries some
	$(BIN)/python -m release.mutants $(MUTANTS)

some-mutants: setup ## twelve mutants of what has changed lately, with the tests next to them
	@seed=$$((0x$$(git rev-parse --short=6 HEAD))); \
	exec $(BIN)/python -m release.mutants --since "$(DRAWN)" --sample 12 --seed $$seed --near --tests tests/unit --at-most 80

soak: setup ## before a release: large numbers, and SOAK_SECONDS of random faults (3600); SOAK_SEED repeats their order
	$(BIN)/python -m localcluster.provision
	SOAK_SECONDS=$(SOAK_SECONDS) SOAK_SEED=$(SOAK_SEED) $(BIN)/pytest -v -m soak tests/e2e

lock: setup ## write the lock files again, with the newest versions that pyproject.toml admits
	$(LOCK) pyproject.toml --extra dev --output-file requirements/dev.txt
	$(LOCK) --group jupyterhub --output-file requirements/jupyterhub.txt
	$(LOCK) pyproject.toml --extra webhook --extra controller --extra device-plugin --extra build --output-file requirements/image.txt

test: setup ## all that a change needs: without a cluster, beside an API server, in a browser, on real clusters
	@.ci/parts $(MAKE) $(PARTS)

check: setup ## what CI runs: lint, all that a change needs, and some mutants
	@.ci/parts $(MAKE) lint $(PARTS) some-mutants

laws: setup ## the laws, with many examples
	$(PYTEST) -q $(SPREAD) --hypothesis-profile=release tests/property
	$(PYTEST) -q $(SPREAD) --hypothesis-profile=release -m hypothesis tests/unit

occasional: setup ## what changes too seldom to be run with each change: tests of benchmarks, among others (root on Linux)
	$(call as_root,occasional,$(PYTEST) -v -m release $(ON_CLUSTERS) tests)

release-check: setup ## before a release: `make check`, KUBEBUILDER_ASSETS' Kubernetes too, laws, benchmarks, mutants, the soak
	@'$(CURRENT)/kube-apiserver' --version 2>&1 | grep -E ' v1\.([3-9][0-9]|[1-9][0-9]{2})' || { \
	  echo 'release-check: KUBEBUILDER_ASSETS must name a directory with the programs of Kubernetes 1.30 or newer' >&2; \
	  exit 1; \
	}
	@CI=true .ci/parts $(MAKE) KUBEBUILDER_ASSETS= CURRENT='$(CURRENT)' lint $(PARTS) current-apiserver current-e2e laws occasional mutants soak

current-%:
	$(MAKE) --no-print-directory KUBEBUILDER_ASSETS='$(CURRENT)' $*

demo: setup ## a real cluster with simulated GPUs, until Ctrl-C (root on Linux); DEMO_ONCE=1 ends by itself
	@exec $(BIN)/python -m localcluster.demo

bench: setup ## the measurements of docs/contributing/benchmarks.md; TRACE=DIRECTORY adds those of a trace, BENCH='--only bind' takes some
	@exec $(BIN)/python -m bench $(if $(TRACE),--trace $(TRACE)) $(BENCH)

image: setup ## the image, reproducibly, and what is in it, into dist/; IMAGE='--name REGISTRY/gpushare:TAG --platform linux/arm64'
	$(BIN)/python -m release image $(IMAGE)

wheels: setup ## what the image is made of, into wheels/, so that `make image` needs no package registry
	$(BIN)/python -m release wheels $(WHEELS)

krew: setup ## the commands as a kubectl plug-in for krew, in build/krew; URL= from where users will get the archive
	$(BIN)/python -m localcluster.krew $(URL)

docs: setup ## regenerate the reference pages from the code
	$(BIN)/python -m release.pages.generate

site: setup ## the documents as a site, in build/site: searchable, and without a network
	$(BIN)/python -m release.pages.site

architecture: setup ## draw the import graph of docs/contributing/imports.md
	$(BIN)/python -m release.pages.architecture

clean: ## remove the virtual environment, caches and build outputs
	rm -rf $(VENV) build dist wheels *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
