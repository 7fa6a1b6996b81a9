# The chores. `make report` and `make test` make .venv on first use; ENV=active uses the Python that is active instead.
PYTHON ?= python3
ENV ?= venv
CORES ?= 4

ifeq ($(ENV),active)
PY := $(PYTHON)
READY :=
else
PY := .venv/bin/python
READY := .venv/.installed
endif

.PHONY: report conditions test check bench fuzz gpu-check clean

report: $(READY)
	$(PY) -m snakemake --cores $(CORES) reports/summary.md

conditions: $(READY)
	$(PY) -m snakemake --cores $(CORES) reports/conditions.md

# Together all tests: those of one process each, those that start processes, those that need the cores for themselves.
test: $(READY)
	$(PY) -m pytest -q -m fast -n auto
	$(PY) -m pytest -q -m "not fast and not alone" -n 2 --dist loadfile
	$(PY) -m pytest -q -m alone

check: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(PY) -m snakefmt --check Snakefile workflow
	$(PY) -m snakemake --lint
	$(PY) -m pytest -q tests/unit/test_imports.py

bench: $(READY)
	$(PY) -m benchmarks.run

fuzz: $(READY)
	$(PY) -m tests.fuzz

# Without a GPU it says so and fails with status 3: nothing was checked.
gpu-check: $(READY)
	$(PY) -m tests.gpu_check

clean:
	rm -rf .venv

# The stamp is written last, so that an interrupted installation is done again.
.venv/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "shardscope needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; name another with PYTHON=…")'
	$(PYTHON) -m venv --clear .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
