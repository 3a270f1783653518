# SPDX-License-Identifier: Apache-2.0
"""Our ranks against the reference connector, unmodified, in both roles, and the reference against itself as the control.

    run.py --reference VERSION=FOLDER [--reference ...] [--json FILE] [PART...]

FOLDER: where that version's package is unpacked (scripts/setup_reference.sh). Our ranks run in this process over rd2h.core, each
rank of the reference in one of its own. Bytes really move: both sides read the other's memory. Writes rows {"version", "our_role",
"scenario", "ok", "detail", "seconds"}; PART: a part of a row's text, to run only these.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import faults
import served
from sides import Reference

SHARED, SHARED_BYTES = Path("/dev/shm"), 256 << 20  # where the ranks' memory lies if there is as much room, else among temporary files


def run(row: tuple, folder: Path) -> dict:
    version, role, name, function, arguments = row
    start, told = time.monotonic(), {"version": version, "our_role": role, "scenario": name, "ok": False, "detail": ""}
    try:
        told["detail"] = function(*arguments, folder)
        told["ok"] = True
    except Exception as e:  # any failure is a row, and the others still run
        told["detail"] = f"{type(e).__name__}: {e}"
    shutil.rmtree(folder, ignore_errors=True)
    return told | {"seconds": round(time.monotonic() - start, 2)}


def run_all(references: list[Reference], parts: list[str], folder: Path) -> list[dict]:
    table = [r for r in (*served.rows(references), *faults.rows(references))
             if not parts or any(part in f"{r[0]} our {r[1]} {r[2]}" for part in parts)]
    told = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for row in pool.map(run, table, (folder / str(n) for n in range(len(table)))):
            told.append(row)
            print(f"{'ok  ' if row['ok'] else 'FAIL'} {row['version']:<22} our {row['our_role']:<8} {row['scenario']:<70}"
                  f" {row['seconds']:5.2f} s  {row['detail']}", flush=True)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", action="append", required=True, metavar="VERSION=FOLDER")
    parser.add_argument("--json", type=Path, help="file for the rows")
    parser.add_argument("parts", nargs="*", metavar="PART")
    args = parser.parse_args()
    os.environ.setdefault("RD2H_LOG", "error")  # what is provoked here is logged as warnings
    start = time.monotonic()
    shared = SHARED if SHARED.is_dir() and shutil.disk_usage(SHARED).free > SHARED_BYTES else None
    with tempfile.TemporaryDirectory(prefix="rd2h-interop-", dir=shared) as folder:
        references = []
        try:
            for version, _, source in (r.partition("=") for r in args.reference):
                references.append(Reference(version, Path(source), Path(folder)))
            for reference in references:
                reference.ready()
            told = run_all(references, args.parts, Path(folder))
        finally:
            for reference in references:
                reference.close()
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(told, indent=1) + "\n")
    failed = sum(not row["ok"] for row in told)
    print(f"interop: {len(told) - failed} passed, {failed} failed, {time.monotonic() - start:.0f} s")
    return 1 if failed or not told else 0


if __name__ == "__main__":
    sys.exit(main())
