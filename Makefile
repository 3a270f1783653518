# SPDX-License-Identifier: Apache-2.0
# Short names for what is done often. Every target does its own set-up; the second time that costs nothing.
PREFIX ?= /usr/local
SECONDS ?= 60
TARGETS ?=
SEEDS ?= 5000
FIRST_SEED ?= 1
LOOPS ?= 50
TP ?= 1:1
.DEFAULT_GOAL := help
.PHONY: help setup build check demo e2e http interop bench fuzz asan tsan install wheel clean format

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: ## what the build needs: system packages that are missing, .venv with the build tools
	@scripts/bootstrap.sh

build: ## library and rd2h program, optimised, in build/
	@scripts/build.sh release

check: setup ## everything that is tested; ends with "N passed, N failed"
	@.venv/bin/python scripts/check.py $(SUITES)

demo: build ## see it work: two processes in C, two vLLM engines, two vLLM servers behind rd2h-proxy
	@scripts/demo.sh

e2e: setup ## two vLLM engines, every model and scenario; table in build/e2e.json
	@.venv/bin/python scripts/check.py e2e

http: build ## two vLLM servers behind rd2h-proxy, compared with Decode alone; TP="2:1 2:2": tensor parallel sizes of Prefill:Decode
	@scripts/setup_vllm.sh
	@.venv-vllm/bin/python tests/e2e/http_proxy.py $(TP)

interop: setup ## against the reference connector, both versions, both roles; table in build/interop.json
	@.venv/bin/python scripts/check.py interop

bench: build ## beside every peer: build/bench.json, docs/benchmarks.md, plots; BENCH="--small --rounds 3" for less
	@.venv/bin/python bench/run.py $(BENCH)

sim: build ## simulated clusters with faults: SEEDS=5000 FIRST_SEED=1; a seed that fails is made small and shown
	@build/tests/sim/sim --seeds $(SEEDS) --first $(FIRST_SEED)

mutations: build ## what is broken on purpose, and the seed of the simulation that notices; table in build/mutations.json
	@.venv/bin/python tests/sim/mutations.py

faults: build ## real processes killed, stopped, cut off, LOOPS=50 each; bounds and outcomes in build/faults.json
	@RD2H_LOG=$${RD2H_LOG:-error} build/tests/faults/faults --loops $(LOOPS) --json build/faults.json

model: setup ## slot gate, done, abort fence and completion in spin, every state; broken variants must be found
	@.venv/bin/python scripts/check.py model

bench-proxy: build ## rd2h-proxy beside the reference's: build/proxy.json, docs/proxy-bench.md
	@.venv/bin/python bench/proxy.py --page

fuzz: ## fuzz targets for SECONDS=60 each; TARGETS="a b" for some of them
	@scripts/build.sh fuzz
	@.venv/bin/python scripts/fuzz.py $(SECONDS) $(TARGETS)

asan: setup ## C tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@.venv/bin/python scripts/check.py asan

tsan: setup ## C tests under ThreadSanitizer
	@.venv/bin/python scripts/check.py tsan

install: build ## library, headers, pkg-config file and program under PREFIX=/usr/local (DESTDIR is honoured)
	@.venv/bin/meson configure build -Dprefix=$(PREFIX)
	@.venv/bin/meson install -C build --quiet

wheel: ## Python wheel for this machine, in dist/
	@scripts/wheel.sh

format: ## clang-format over the C files given in FILES="a.c b.h"
	@scripts/bootstrap.sh clang-format-14
	@clang-format-14 -i $(FILES)

clean: ## everything that was built (virtual environments stay)
	rm -rf build build-* dist
