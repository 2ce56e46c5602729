# Sanitizers and fuzzing for the native kernel. Each target has its own environment or program under build/.
SANITIZED := build/venv-sanitize
FUZZ_SECONDS ?= 60
KERNEL_TESTS := tests/test_chrf.py tests/test_bleu.py tests/test_native*.py tests/test_race_lists.py tests/test_combinations.py tests/test_forecast*.py tests/test_cover.py

.PHONY: sanitize tsan fuzz neon windows

# The kernel's tests under AddressSanitizer and UndefinedBehaviorSanitizer; the first error ends the run.
sanitize: $(SANITIZED)/.built
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 $(SANITIZED)/bin/python -m pytest -q -p no:cacheprovider -m "not slow" $(KERNEL_TESTS)

$(SANITIZED)/.built: $(NATIVE) $(shell find src/mbrace -name '*.py')
	test -d $(SANITIZED) || $(PYTHON) -m venv $(SANITIZED)
	$(SANITIZED)/bin/python -m pip install --quiet numpy orjson rich pytest pytest-timeout hypothesis sacrebleu
	$(SANITIZED)/bin/python -m pip install --quiet --no-deps --force-reinstall . \
	  -C cmake.define.MBRACE_SANITIZE=address,undefined -C install.strip=false -C build-dir=build/sanitize
	touch $@

# native/stress.cpp under ThreadSanitizer: scores in every instruction set, decisions, wins and forecasts, each on many threads. It
# is a program of its own, so that Python's own locking stays out of it.
STRESS := native/stress.cpp $(filter-out native/module%.cpp native/stress.cpp native/count_avx%.cpp native/count_neon.cpp, \
  $(wildcard native/*.cpp))
TSAN := $(CXX) -std=c++20 -O1 -g -ffp-contract=off -fsanitize=thread
ifneq ($(filter x86_64 amd64,$(shell uname -m)),)
TSAN_VARIANTS := -DMBRACE_X86 build/tsan-avx2.o build/tsan-avx512.o
else ifneq ($(filter aarch64 arm64,$(shell uname -m)),)
TSAN_VARIANTS := -DMBRACE_ARM native/count_neon.cpp
endif

tsan: $(NATIVE)
	mkdir -p build
ifneq ($(filter -DMBRACE_X86,$(TSAN_VARIANTS)),)
	$(TSAN) -mavx2 -c -o build/tsan-avx2.o native/count_avx2.cpp
	$(TSAN) -mavx512f -mavx512dq -mavx512vl -mavx512bw -c -o build/tsan-avx512.o native/count_avx512.cpp
endif
	$(TSAN) -o build/stress-tsan $(STRESS) $(TSAN_VARIANTS) -pthread
	TSAN_OPTIONS=halt_on_error=1 build/stress-tsan

# Random strings and options against sacreBLEU, for FUZZ_SECONDS.
fuzz: .stamp-all
	$(BIN)/python -m pip install --quiet atheris
	mkdir -p build/corpus
	$(BIN)/python native/fuzz.py -max_total_time=$(FUZZ_SECONDS) -max_len=800 build/corpus

# The ARM variant against the portable one, on any machine with an aarch64 compiler and qemu
# (Debian: g++-aarch64-linux-gnu qemu-user).
neon: $(NATIVE)
	mkdir -p build
	aarch64-linux-gnu-g++ -std=c++20 -O2 -ffp-contract=off -DMBRACE_ARM -static -o build/stress-neon \
	  $(STRESS) native/count_neon.cpp -pthread
	qemu-aarch64 build/stress-neon

# The kernel for Windows, on any machine with mingw-w64 (Debian: g++-mingw-w64-x86-64); it is run where there is Wine.
WINDOWS := x86_64-w64-mingw32-g++-posix -std=c++20 -O2 -Wall -Wextra -ffp-contract=off
windows: $(NATIVE)
	mkdir -p build
	$(WINDOWS) -mavx2 -c -o build/windows-avx2.o native/count_avx2.cpp
	$(WINDOWS) -mavx512f -mavx512dq -mavx512vl -mavx512bw -c -o build/windows-avx512.o native/count_avx512.cpp
	$(WINDOWS) -DMBRACE_X86 -static -o build/stress-windows.exe $(STRESS) build/windows-avx2.o build/windows-avx512.o -pthread
	if command -v wine >/dev/null; then WINEDEBUG=-all wine build/stress-windows.exe; fi
