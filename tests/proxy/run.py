#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs rd2h-proxy between scripted engines, every case on a proxy of its own, and reports as TAP.

run.py [--proxy PROGRAM] [NAME...]: only the cases whose name begins with one of these. At the end of each case no request, score, entry
or byte may be left in the proxy, no engine may work for nobody, and the program must end cleanly when told to.
"""
import argparse
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import case_client  # noqa: E402, F401
import case_config  # noqa: E402, F401
import case_engines  # noqa: E402, F401
import case_flow  # noqa: E402, F401
import case_http  # noqa: E402, F401
import case_load  # noqa: E402, F401
from bench import Bench  # noqa: E402
from cases import CASES  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--proxy", default=str(ROOT / "build/proxy/rd2h-proxy"))
    ask.add_argument("names", nargs="*")
    a = ask.parse_args()
    Bench.program = a.proxy
    cases = [c for c in CASES if not a.names or c.name.startswith(tuple(a.names))]
    print(f"1..{len(cases)}", flush=True)
    failed, begin = 0, time.monotonic()
    for number, case in enumerate(cases, 1):
        start = time.monotonic()
        try:
            case.run()
            print(f"ok {number} - {case.name} ({time.monotonic() - start:.1f} s)", flush=True)
        except Exception:
            failed += 1
            print(f"not ok {number} - {case.name}", flush=True)
            print("".join(f"# {line}\n" for line in traceback.format_exc().splitlines()), end="", flush=True)
    print(f"# {len(cases) - failed} passed, {failed} failed in {time.monotonic() - begin:.0f} s")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
