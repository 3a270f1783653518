#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Habits that a script can see (CONTRIBUTING.md): licence line, sizes, unfinished words, paths of one machine."""
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES = 800
FUNCTION_LINES = 80
COLUMNS = 140

CODE = (".c", ".h", ".py", ".sh", ".map", ".build", ".options")
UNMARKED = (".build", ".options")  # mostly lists of files: they need no licence line
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(home|root|work|farm|Users)/")
REGISTRY = re.compile(r"\b(pypi|pythonhosted|debian|npmjs)\.org\b")
# Words of whoever wrote a text, not of the product: they tell its reader nothing.
OUTSIDE = re.compile(r"\b(workplace|rigs?|issue #?\d+|shared/\w+)\b", re.I)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")

Finding = tuple[int, str]


def c_functions(lines: list[str]) -> Iterator[tuple[int, str, int]]:
    """(first line, name, lines) of each function: from a head at column 0 that opens a brace to the brace at column 0."""
    head = ""
    start = 0
    for number, line in enumerate(lines, 1):
        if start:
            if line.startswith("}"):
                name = re.search(r"(\w+)\s*\(", head)
                yield start, name[1] if name else "?", number - start + 1
                start, head = 0, ""
        elif line[:1].isalpha() or line[:1] == "_" or (head and line[:1].isspace()):
            head += line
            if line.rstrip().endswith("{"):
                if "(" in head and "=" not in head.split("(")[0]:
                    start = number
                else:
                    head = ""
            elif line.rstrip().endswith(";"):
                head = ""
        else:
            head = ""


def py_functions(text: str) -> Iterator[tuple[int, str, int]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.name, node.end_lineno - node.lineno + 1


def check_code(path: Path, text: str, lines: list[str]) -> Iterator[Finding]:
    if path.suffix not in UNMARKED and not any("SPDX-License-Identifier: Apache-2.0" in line for line in lines[:3]):
        yield 1, "no SPDX-License-Identifier: Apache-2.0 in the first lines"
    if len(lines) > FILE_LINES:
        yield FILE_LINES, f"{len(lines)} lines, at most {FILE_LINES}: split by responsibility"
    functions = c_functions(lines) if path.suffix in (".c", ".h") else py_functions(text) if path.suffix == ".py" else ()
    for number, name, length in functions:
        if length > FUNCTION_LINES:
            yield number, f"function {name} has {length} lines, at most {FUNCTION_LINES}"
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS:
            yield number, f"{len(line)} columns, at most {COLUMNS}"
        if line != line.rstrip() or ("\t" in line and path.name != "Makefile"):
            yield number, "tab, or blanks at the end"


def check_text(path: Path, lines: list[str]) -> Iterator[Finding]:
    for number, line in enumerate(lines, 1):
        for pattern, what in ((UNFINISHED, "unfinished"), (MACHINE_PATH, "path of one machine"), (REGISTRY, "name of a registry")):
            if found := pattern.search(line):
                yield number, f"{what}: {found[0]}"
        if path.suffix != ".md":
            continue
        if found := OUTSIDE.search(line):
            yield number, f"not a word of the product: {found[0]}"
        for target in LINK.findall(line):
            if not (path.parent / target).exists():
                yield number, f"link to nothing: {target}"


def main() -> int:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True)
    bad = files = 0
    for name in sorted(set(listed.stdout.splitlines())):
        path = ROOT / name
        if not path.is_file() or name == "LICENSE" or name.startswith(("fuzz/corpus/", "tests/golden/")):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        files += 1
        lines = text.splitlines()
        findings = list(check_text(path, lines))
        if path.suffix in CODE or path.name in ("Makefile", "run"):
            findings += check_code(path, text, lines)
        for number, what in sorted(findings):
            bad += 1
            print(f"{name}:{number}: {what}")
    print(f"{files} files, {bad} findings")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
