PYTHON ?= python3
BIN := .venv/bin

.PHONY: install test check format demo clean

install: .venv/.installed

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

test: install check

check:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: install
	$(BIN)/batchbalance run examples/digits.toml --runs-dir runs/demo --jobs 2
	$(BIN)/batchbalance report runs/demo --output runs/demo-report

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
