# Everything a checkout needs; each target makes the virtual environment first if it is not there.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
DEV := $(VENV)/.installed-dev

OLDEST ?= -c constraints-oldest.txt
NEWEST ?= -c constraints-newest.txt
TESTS ?= tests
# uv is quicker where it is there. It reads nothing that pip is told but where wheels lie; make UV= takes pip.
UV := $(shell command -v uv)
ifeq ($(UV),)
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
else
INSTALL = UV_FIND_LINKS="$$PIP_FIND_LINKS" $(UV) pip install --quiet --python $(BIN)/python
endif

.PHONY: install demo test test-slow test-oldest test-newest check format docs results probe bench clean

install: $(DEV)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' || \
		{ echo "fedsim needs Python 3.11 or 3.12; run make PYTHON=python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing fedsim and what it needs into $(VENV): some minutes, most of them for PyTorch."
	$(INSTALL) -c constraints.txt -e .
	touch $@

$(DEV): $(READY)
	@echo "Installing the tools of developers: tests, types, documentation."
	$(INSTALL) -c constraints.txt -e '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/fedsim run quickstart

# Some containers forbid bytecode, which each process of the suite would then compile anew.
test: $(DEV)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: $(DEV)
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow

# The suite, or TESTS of it, with the oldest versions that are allowed and with the newest.
test-oldest: CHOSEN = $(OLDEST)
test-newest: CHOSEN = $(NEWEST)
test-oldest test-newest: test-%: pyproject.toml
	test -x $(VENV)-$*/bin/python || $(PYTHON) -m venv $(VENV)-$*
	$(VENV)-$*/bin/python -m pip install --quiet --disable-pip-version-check --upgrade $(CHOSEN) -e '.[dev]'
	$(VENV)-$*/bin/python -m pytest $(TESTS)

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

results: $(DEV)
	$(BIN)/python -m docs.campaign

# Which published results the code of today still gives, by a small experiment each.
probe: $(DEV)
	$(BIN)/python -m docs.alive --ask

bench: $(DEV)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
