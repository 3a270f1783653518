#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of this folder and prints them as TAP: run.py [PATTERN...], a pattern is part of a test's name."""

from __future__ import annotations

import os
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]
os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", DO_NOT_TRACK="1", VLLM_PLUGINS="", VLLM_LOGGING_LEVEL="CRITICAL")


def cases(suite: unittest.TestSuite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from cases(test)
        else:
            yield test


class Tap(unittest.TestResult):
    """Test Anything Protocol: one line a test, what went wrong below it."""

    def __init__(self) -> None:
        super().__init__()
        self._n = 0

    def _line(self, ok: bool, test: unittest.TestCase, more: str = "") -> None:
        self._n += 1
        what = test.shortDescription() or ""
        print(f"{'ok' if ok else 'not ok'} {self._n} - {test.id()}{': ' if what else ''}{what}{more}", flush=True)

    def _bad(self, test: unittest.TestCase, err) -> None:
        self._line(False, test)
        print("\n".join("# " + line for line in self._exc_info_to_string(err, test).splitlines()), flush=True)

    def addSuccess(self, test) -> None:
        self._line(True, test)

    def addError(self, test, err) -> None:
        super().addError(test, err)
        self._bad(test, err)

    def addFailure(self, test, err) -> None:
        super().addFailure(test, err)
        self._bad(test, err)

    def addSubTest(self, test, subtest, err) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            print(f"# {subtest}: {err[1]}", flush=True)

    def addSkip(self, test, reason) -> None:
        super().addSkip(test, reason)
        self._line(True, test, f" # SKIP {reason}")


def main() -> int:
    patterns = sys.argv[1:]
    wanted = [
        t
        for t in cases(unittest.defaultTestLoader.discover(str(HERE), top_level_dir=str(HERE)))
        if not patterns or any(p in t.id() for p in patterns)
    ]
    print(f"1..{len(wanted)}", flush=True)
    result = Tap()
    unittest.TestSuite(wanted).run(result)
    return 0 if wanted and result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
