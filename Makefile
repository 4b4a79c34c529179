PYTHON ?= python3
BIN := .venv/bin

.PHONY: install test check types lint check-workflows format docs docs-serve demo bench torture test-labelstudio clean

install: .venv/.installed

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# __init__.py has the version, which an editable install copies into its metadata.
.venv/.installed: pyproject.toml constraints.txt src/batchbalance/__init__.py
	$(PYTHON) -m venv .venv
	$(PIP) -e ".[dev]"
	touch $@

# What a user installs. It is not made again where all of `.[dev]` is there.
.venv/.installed-standard: pyproject.toml constraints.txt src/batchbalance/__init__.py
	test -e .venv/.installed || { $(PYTHON) -m venv .venv && $(PIP) -e ".[standard]"; }
	touch $@

test: install check

check: lint check-workflows
	$(BIN)/python -m pytest -m "not typed or slow"
	$(MAKE) --no-print-directory types

# Checking shapes and types makes a test two to three times as long, so that it is a pass of its own, and each test is in one of the
# two. It fails if a function with shapes in its annotations was not called.
types:
	$(BIN)/python -m pytest --jaxtyping-packages=batchbalance,typed.checked -m "typed and not slow"

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The schemas come with check-jsonschema; nothing is fetched.
SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema
FORMS := .github/ISSUE_TEMPLATE

check-workflows:
	$(SCHEMA) vendor.github-workflows .github/workflows/*.yml
	$(SCHEMA) custom.github-workflows-require-timeout .github/workflows/*.yml
	$(SCHEMA) vendor.github-issue-forms $(filter-out $(FORMS)/config.yml,$(wildcard $(FORMS)/*.yml))
	$(SCHEMA) vendor.github-issue-config $(FORMS)/config.yml
	$(SCHEMA) vendor.citation-file-format --default-filetype yaml CITATION.cff

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# `batchbalance demo` without a browser. It replaces the folder of an earlier demo. The models are so small that a second thread
# would only cost time.
demo: .venv/.installed-standard
	rm -rf runs/demo
	OMP_NUM_THREADS=1 $(BIN)/batchbalance demo runs/demo --no-page

# The reference from the code, the notebooks run anew, the site in site/; a warning or a link that leads nowhere fails it.
docs: install
	$(BIN)/python -m docsite

docs-serve: install
	$(BIN)/python -m docsite reference serve

# The peers need an environment of their own: some pin old versions, and one asks for torchvision, which it does not use
# here. They are installed without their pins; one that cannot be installed is left out and reported absent.
BENCH := .venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.venv-bench/.installed: pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv .venv-bench
	$(BENCH) -e . scipy matplotlib tqdm psutil joblib pillow
	-$(BENCH) --no-deps batchbald_redux toma
	-$(BENCH) --no-deps baal structlog torchmetrics lightning-utilities
	-$(BENCH) --no-deps scikit-activeml makefun
	touch $@

# `make bench OPTIONS=--quick` takes small sizes.
bench: install .venv-bench/.installed
	$(BIN)/python -m benchmarks --peers .venv-bench --output bench.json $(if $(findstring --only,$(OPTIONS)),,--plot bench.png) $(OPTIONS)

# Kills, damage and fuzz for as long as one likes, as `make torture OPTIONS="--minutes 5 --seed 3"`; an hour by default.
torture: install
	$(BIN)/python -m torture $(OPTIONS)

# Label Studio is about 160 packages, 1 GB; `make test-labelstudio LABEL_STUDIO=…/bin/label-studio` takes one that is there. Its
# data directory is kept, because its first start takes minutes.
LABEL_STUDIO ?= .venv-labelstudio/bin/label-studio
LABEL_STUDIO_DATA ?= .labelstudio

.venv-labelstudio/bin/label-studio:
	$(PYTHON) -m venv .venv-labelstudio
	.venv-labelstudio/bin/python -m pip install --quiet --disable-pip-version-check label-studio==1.23.2

test-labelstudio: install $(LABEL_STUDIO)
	PYTHONPATH=src:.:tests/support $(BIN)/python tests/support/labelstudio_server.py --label-studio $(LABEL_STUDIO) --data $(LABEL_STUDIO_DATA) $(OPTIONS)

clean:
	rm -rf .venv .venv-bench .venv-labelstudio .mypy_cache .pytest_cache .ruff_cache .cache site
