# make setup   virtual environment with all that autotune needs
# make demo    find the fastest plan of a real example, set-up included
# make test    the tests, set-up included
# make docs    the documentation site, in build/site, set-up included
# make lint    style, types and layers, set-up included

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BUDGET ?= 120s
# Two processes; the tests of a file stay together, they share its Ray and its servers. Files go
# out in the order of tests/conftest.py: sorted by number of tests, as is the default, files of
# one long test would come last.
PARALLEL ?= -n 2 --dist loadfile --no-loadscope-reorder
BIN := $(VENV)/bin

INSTALL := VENV=$(VENV) .ci/install

.PHONY: setup demo test docs lint clean
.DELETE_ON_ERROR:

setup: $(VENV)/.runtime

demo: $(VENV)/.runtime
	$(BIN)/autotune run examples/digits_cnn.py --budget $(BUDGET)

# Tests start many processes. Without bytecode files, each takes ten seconds longer to import torch.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

# Material says on each build that the next version of MkDocs will differ; pyproject.toml keeps it out.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(VENV)/.dev
	$(BIN)/mkdocs build

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache

$(VENV)/.uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check uv
	touch $@

$(VENV)/.runtime: $(VENV)/.uv pyproject.toml constraints.txt .ci/install
	$(INSTALL) --editable '.[examples]'
	touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(INSTALL) --editable '.[dev]'
	touch $@
