#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the known faults of tests/cases/ against the tests: each must have one that carries its id in its name.

tests/cases/GROUP.json maps an id to {"fault": one line, "tests": [files]}. A test carries an id when a name or a string of the file
begins with it or holds it between other characters (`test_Y01_scale`, `"Y01 scale"`, `y01_scale`); a comment is no test.
"""
import io
import json
import re
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "tests/cases"
# Groups that are complete -> how many faults they hold, so that none is lost with its line.
COMPLETE: dict[str, int] = {
    "security": 5,
    "peer": 11,
    "lifecycle": 12,
    "layout": 8,
    "scheduler": 7,
    "proxy": 22,
    "transport": 8,
}
C_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
CASE_ID = re.compile(r"[A-Z]\d\d")


def without_comments(path: Path) -> str:
    text = path.read_text()
    if path.suffix in (".c", ".h"):
        return C_COMMENT.sub("", text)
    if path.suffix != ".py":
        return re.sub(r"(?m)(^|\s)#.*", "", text)
    kept = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME or token.type == tokenize.STRING and not token.string.lstrip("rbfuRBFU").startswith('"""'):
            kept.append(token.string)
    return "\n".join(kept)


def carries(path: Path, case: str) -> bool:
    return bool(re.search(rf"(?<![0-9A-Za-z]){case}(?![0-9A-Za-z])", without_comments(path), re.I))


def faults_of(case: str, row: dict) -> list[str]:
    """What is wrong with one line of a table."""
    wrong = []
    if not CASE_ID.fullmatch(case):
        wrong.append("is not a letter and two digits")
    if not row.get("fault", "").strip() or "\n" in row["fault"]:
        wrong.append("has no fault in one line")
    if not row.get("tests"):
        wrong.append("names no test file")
    for name in row.get("tests", ()):
        if not (ROOT / name).is_file():
            wrong.append(f"{name} is not there")
        elif not carries(ROOT / name, case):
            wrong.append(f"no test in {name} carries it")
    return wrong


def main() -> int:
    number, failed, seen = 0, 0, set()
    tables = {path.stem: json.loads(path.read_text()) for path in sorted(TABLES.glob("*.json"))}

    def result(name: str, wrong: list[str]) -> None:
        nonlocal number, failed
        number += 1
        failed += bool(wrong)
        print(f"{'not ok' if wrong else 'ok'} {number} - {name}" + "".join(f"\n# {text}" for text in wrong))

    for group, table in tables.items():
        for case, row in table.items():
            result(f"{group} {case} {row.get('fault', '')}", faults_of(case, row) + (["is in two groups"] if case in seen else []))
            seen.add(case)
    for group, count in COMPLETE.items():
        have = len(tables.get(group, {}))
        result(f"{group} is complete", [] if have == count else [f"tests/cases/{group}.json holds {have} faults, not {count}"])
    print(f"1..{number}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
