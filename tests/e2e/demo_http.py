#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole system over HTTP, to look at: two vLLM OpenAI servers, rd2h-proxy in front of them, a streamed answer to the official client
and what the proxy knows of it.

demo_http.py [--models FOLDER] [--proxy PROGRAM]
"""
from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import models as tiny
from demo import BOLD, GREEN, OFF, RED, progress
from http_proxy import ASK, System, words
from models import MODELS

ROOT = Path(__file__).resolve().parents[2]
PROMPT = 120


def answer(s: System, prompt: str) -> tuple[str, float, float]:
    """The text, seconds to the first token and to the last."""
    begin, first, text = time.monotonic(), 0.0, ""
    print(f"{BOLD}answer{OFF}      ", end="", flush=True)
    for chunk in s.client.completions.create(prompt=prompt, stream=True, **ASK):
        first = first or time.monotonic() - begin
        print(chunk.choices[0].text if text else chunk.choices[0].text.lstrip(), end="", flush=True)
        text += chunk.choices[0].text
    print()
    return text, first, time.monotonic() - begin


def show(s: System, logs: Path) -> bool:
    s.client.completions.create(prompt=words(1, 40), **ASK)  # the first one of all warms both engines up
    prompt, before = words(7, PROMPT), s.prompts_of_prefill()
    print(f"\n{BOLD}POST{OFF}        http://127.0.0.1:{s.port}/v1/completions, stream, to the official client\n"
          f"{BOLD}prompt{OFF}      {' '.join(prompt.split()[:10])} ... ({PROMPT} words)")
    text, first, last = answer(s, prompt)
    computed = s.prompts_of_prefill() - before
    alone = s.alone.completions.create(prompt=prompt, **ASK).choices[0].text
    log = [json.loads(line) for line in (logs / "http-proxy.log").read_text().splitlines() if line.startswith("{")][-1]
    same = text == alone
    print(f"\nas Decode's server alone would answer: {GREEN + 'yes' if same else RED + 'NO, ' + repr(alone)}{OFF}\n"
          f"prompt tokens that Prefill computed: {computed}\n"
          f"first token after {1000 * first:.0f} ms, last after {1000 * last:.0f} ms\n\n"
          f"of that the proxy's access log says\n"
          f"    id          {log['id']}  (the same in both engines' logs)\n"
          f"    rendezvous  after {log['rendezvous_ms']} ms   Prefill  {log['prefill_ms']} ms   first byte  after {log['first_ms']} ms   "
          f"all  {log['total_ms']} ms\n"
          f"    Decode      {log['decode']}   Prefill  {log['prefill']}   status {log['status']}   {log['bytes_out']} bytes")
    return same and computed >= PROMPT


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--models", type=Path, default=ROOT / "build/e2e-models")
    ask.add_argument("--proxy", default=str(ROOT / "build/proxy/rd2h-proxy"))
    a = ask.parse_args()
    logs = ROOT / "build/demo-logs"
    logs.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # servers that are told to end leave things that it cleans up
    tiny.ensure(a.models, [MODELS["dsv32"].folder])
    with progress("starting two vLLM servers and rd2h-proxy"):
        system = System(a.models / MODELS["dsv32"].folder, a.proxy, logs, (1, 1))
    try:
        return 0 if show(system, logs) else 1
    finally:
        system.close()


if __name__ == "__main__":
    sys.exit(main())
