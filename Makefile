# Each target creates what it needs, inside this folder and the user cache.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow check bench clean

demo: .venv/engine.stamp  ## analyse a sample log, launch what is advised beside the baseline, measure both
	$(BIN)/advise demo

test: .venv/dev.stamp  ## the tests that run without a GPU, under ten minutes on two cores
	$(BIN)/python -m pytest

test-slow: .venv/dev.stamp  ## the long suites: 100,000 random core events, the whole equality matrix
	$(BIN)/python -m pytest -m slow

check: .venv/dev.stamp  ## style, types and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/dev.stamp  ## every figure that README and docs claim
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv build dist

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/engine.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[engine]'
	touch $@

.venv/dev.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	touch $@ .venv/engine.stamp
