#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What rd2h does, to look at: first in C alone, then with two real vLLM engines, then over HTTP.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; else bold='' plain=''; fi
title() { printf '\n%s%s%s\n\n' "$bold" "$*" "$plain"; }

title "1. Prefill and Decode in C: one process each at DeepSeek-V3.2 shapes, then ten at GLM-5 shapes"
build/rd2h demo
build/rd2h demo --model glm-5 --layers 12 --prefill-tp 3 --prefill-pp 2 --decode-tp 2 --decodes 2 \
  --reuse-buffers 3 --trace build/demo-trace.json

title "2. Two vLLM engines: Prefill computes the prompt, Decode pulls its KV cache and generates"
scripts/setup_vllm.sh
.venv-vllm/bin/python tests/e2e/demo.py

title "3. The same over HTTP: two vLLM servers, rd2h-proxy in front of them"
.venv-vllm/bin/python tests/e2e/demo_http.py
