# Each target creates what it needs, inside this folder and the user cache.
PYTHON ?= python3
BIN := .venv/bin
QUICK := not slow and not readers and not producers and not routers and not tools
WORKERS = $(shell $(BIN)/python -c "from engine.host import usable_cores; print(usable_cores() + 1)")
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-slow test-faults test-readers test-producers test-routers test-tools check bench clean

demo: .venv/engine.stamp  ## analyse a sample log, launch what is advised beside the baseline, measure both
	$(BIN)/advise demo

test: .venv/dev.stamp  ## the tests that run without a GPU, in one process more than cores, since many wait; then those that measure time
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m "$(QUICK) and not timed"
	$(BIN)/python -m pytest -m "$(QUICK) and timed"

test-slow: .venv/dev.stamp  ## the long suites: 1,000,000 random core events, soak, fuzz, the whole equality matrix
	$(BIN)/python -m pytest -m slow

test-readers: .venv/dev.stamp .venv-readers/stamp  ## AIPerf and GuideLLM read our traces, LiteLLM calls our recorder
	$(BIN)/python -m pytest -m readers tests/readers

test-producers: .venv/dev.stamp .venv-readers/stamp .venv-producers/stamp  ## logs written by their real producers
	$(BIN)/python -m pytest -m producers tests/producers

test-routers: .venv/dev.stamp .venv-routers/stamp  ## vllm-router in front of our servers
	$(BIN)/python -m pytest -m routers tests/routers

test-tools: .venv/dev.stamp .venv-readers/stamp .venv-readers/vllm-bench.stamp  ## AIPerf and GuideLLM beside our replay; prints the table of docs/load-generators.md
	$(BIN)/python -m pytest -m tools -s tests/tools

test-faults: .venv/dev.stamp  ## processes killed, stopped and cut off by real signals; prints the table of docs/faults.md
	$(BIN)/python -m benchmarks.faults

check: .venv/dev.stamp  ## style, types, import directions, and GPU kernels compiled ahead of time
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy & types=$$!; $(BIN)/python -m engine.kernels.compile; kernels=$$?; wait $$types && exit $$kernels

bench: .venv/dev.stamp  ## every figure that README and docs claim
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv .venv-readers .venv-producers .venv-routers build dist

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/engine.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[engine]'
	touch $@

.venv/dev.stamp: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	touch $@ .venv/engine.stamp

# Other people's programs, each with its own dependencies.
.venv-readers/stamp:
	for name in aiperf guidellm litellm; do \
	  $(PYTHON) -m venv .venv-readers/$$name && \
	  .venv-readers/$$name/bin/python -m pip install --quiet $$name msgspec numpy backports-zstd || exit 1; \
	done
	touch $@

# Only the files of `vllm bench serve` are run: without torch and all else that vLLM needs.
.venv-readers/vllm-bench.stamp:
	$(PYTHON) -m venv .venv-readers/vllm-bench
	.venv-readers/vllm-bench/bin/python -m pip install --quiet --no-deps vllm==0.33.0
	.venv-readers/vllm-bench/bin/python -m pip install --quiet aiohttp numpy regex tqdm
	touch $@

.venv-producers/stamp: tests/producers/requirements.txt
	$(PYTHON) -m venv .venv-producers
	.venv-producers/bin/python -m pip install --quiet -r tests/producers/requirements.txt
	touch $@

.venv-routers/stamp:
	$(PYTHON) -m venv .venv-routers
	.venv-routers/bin/python -m pip install --quiet vllm-router==0.1.17
	touch $@
