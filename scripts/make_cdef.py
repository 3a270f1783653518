#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Declarations for cffi, made from the public headers: make_cdef.py CC... prints them.

The compiler's preprocessor does the work: includes of the standard library are answered by empty files (cffi knows those types),
RD2H_API becomes nothing, X-macros and constants of array sizes are expanded. Constants that are macros are declared by name only:
their values come from the C compiler.
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include"
HEADERS = sorted((INCLUDE / "rd2h").glob("*.h"))


def preprocess(cc: list[str]) -> str:
    with tempfile.TemporaryDirectory() as stubs:
        for header in set(re.findall(r"#include <(std\w+\.h)>", "".join(h.read_text() for h in HEADERS))):
            Path(stubs, header).touch()
        # Without __GNUC__ the headers use no attributes.
        done = subprocess.run([*cc, "-E", "-P", "-nostdinc", "-U__GNUC__", f"-I{stubs}", f"-I{INCLUDE}", "-x", "c", "-"],
                              input="#include <rd2h/rd2h.h>\n", capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"make_cdef.py: {' '.join(cc)} could not preprocess {INCLUDE}/rd2h/rd2h.h:\n{done.stderr}")
    return done.stdout


def constants() -> list[str]:
    """Macros of the form `#define RD2H_NAME value`: strings by pointer, the rest as integers; functions and X-macros are none."""
    lines = []
    for header in HEADERS:
        for name, value in re.findall(r"^#define (RD2H_\w+)[ \t]+(.+)$", header.read_text(), re.M):
            value = re.sub(r"/\*.*", "", value).strip()
            if value.startswith('"'):
                lines.append(f"static char *const {name};")
            elif name != "RD2H_API":
                lines.append(f"#define {name} ...")
    return lines


def make(cc: list[str]) -> str:
    return "\n".join([*constants(), preprocess(cc)])


if __name__ == "__main__":
    print(make(sys.argv[1:] or ["cc"]))
