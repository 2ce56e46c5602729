# `make demo` and `make test` start from nothing but Python, make and a C++ compiler, and build their own .venv.
PYTHON ?= python3
BIN := .venv/bin
NATIVE := CMakeLists.txt $(wildcard native/*.cpp native/*.hpp)

.PHONY: demo test test-slow lint bench browser clean

demo: .stamp-all
	$(BIN)/mbrace demo

test: lint browser
	$(BIN)/python -m pytest -n 2 -m "not slow"

test-slow: .stamp-all browser
	$(BIN)/python -m pytest

lint: .stamp-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

# The package with every extra, and the tools that check it. constraints.txt keeps torch to a small CPU build.
.stamp-all: .venv/bin/python pyproject.toml constraints.txt $(NATIVE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group test --group lint --editable ".[all]"
	touch $@

# Browser tests drive a headless Chromium; where there is none and apt can bring it, it does.
browser: .stamp-all
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	    apt-get install -y -qq chromium >/dev/null; } || \
	  echo "no Chromium found and none could be installed: browser tests will be skipped"

clean:
	rm -rf .venv .stamp-* build

include native/hardening.mk
