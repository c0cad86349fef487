# Needs git, make and Python 3.11 or newer. Everything else goes into .venv, from
# requirements-dev.lock; PYTHON=... names the Python to use.

BIN := .venv/bin
READY := .venv/.ready

.PHONY: setup help demo test check soak format lock clean

setup: $(READY) help

help:
	@echo 'make demo    the main job on this machine, with no account and no GPU'
	@echo 'make test    every test that needs no other machine (PYTEST_ARGS=... narrows it)'
	@echo 'make check   lint, format, types, import rules'
	@echo 'make soak    the protocol under faults, many seeds (SEEDS=0-1999)'
	@echo 'make format  mend what lint and format can mend'
	@echo 'make lock    renew requirements-dev.lock (needs uv)'
	@echo 'make clean   remove .venv, caches and builds'

$(READY): pyproject.toml requirements-dev.lock tools/bootstrap.sh
	@sh tools/bootstrap.sh
	@touch $@

demo: $(READY)
	@$(BIN)/python -m tools.demo

# Two processes: what two cores carry without starving the real servers of the tests.
test: $(READY)
	@$(BIN)/python -m pytest -q -n 2 --dist worksteal $(PYTEST_ARGS)

check: $(READY)
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --quiet --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# The search over many seeds, and again for seeds that catch each broken variant; then the
# tests that take long.
SEEDS ?= 0-1999
soak: $(READY)
	$(BIN)/python -m simulation --seeds $(SEEDS) --jobs 2
	$(BIN)/python -m pytest -q -m soak

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --group dev --custom-compile-command 'make lock' \
	    --output-file requirements-dev.lock pyproject.toml

clean:
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
