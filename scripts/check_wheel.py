# SPDX-License-Identifier: Apache-2.0
"""Looks at a wheel from inside the environment where it was installed (scripts/check_wheel.sh). TAP."""
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import check_exports
import make_cdef

import rd2h
from rd2h._rd2h import ffi, lib

ROOT = Path(__file__).resolve().parent.parent
WHEEL = Path(sys.argv[1])


def version_is_the_headers() -> None:
    header = (ROOT / "include/rd2h/version.h").read_text()
    wanted = re.search(r'RD2H_VERSION_STRING "(.*)"', header)[1]
    assert rd2h.version() == wanted, (rd2h.version(), wanted)
    assert f"-{wanted}-" in WHEEL.name, WHEEL.name


def one_file_for_every_python() -> None:
    assert "-cp311-abi3-" in WHEEL.name, WHEEL.name


def every_function_is_declared() -> None:
    declared = {name for name in dir(lib) if name.startswith("rd2h_")}
    assert declared == check_exports.declared().keys(), declared ^ check_exports.declared().keys()


def every_struct_has_the_compilers_layout() -> None:
    # cffi compares sizes and offsets with what the compiler said when a type is first used.
    names = set(re.findall(r"\bstruct (rd2h_\w+)\s*\{", make_cdef.preprocess(["cc"])))
    assert len(names) > 10, names
    for name in names:
        assert ffi.sizeof(f"struct {name}") > 0, name
        ffi.new(f"struct {name} *")


def statuses_are_the_headers() -> None:
    table = re.findall(r"X\((\w+), (-?\d+),", (ROOT / "include/rd2h/status.h").read_text())
    assert len(table) > 10, table
    for name, number in table:
        assert getattr(lib, f"RD2H_{name}") == int(number), name


def every_module_is_packed() -> None:
    with zipfile.ZipFile(WHEEL) as packed:
        names = {name.removeprefix("rd2h/") for name in packed.namelist() if name.startswith("rd2h/")}
    wanted = {path.name for path in (ROOT / "python/rd2h").glob("*.py")} | {"_rd2h.abi3.so"}
    assert names == wanted, names ^ wanted


def nothing_of_librd2h_is_exported() -> None:
    extension = sys.modules["rd2h._rd2h"].__file__
    lines = subprocess.run(["nm", "-D", "--defined-only", extension], check=True, capture_output=True, text=True).stdout
    symbols = {line.split()[-1] for line in lines.splitlines()}
    assert symbols == {"PyInit__rd2h"}, symbols


CASES = [version_is_the_headers, one_file_for_every_python, every_function_is_declared, every_struct_has_the_compilers_layout,
         statuses_are_the_headers, every_module_is_packed, nothing_of_librd2h_is_exported]

print(f"1..{len(CASES)}")
failed = 0
for number, case in enumerate(CASES, 1):
    try:
        case()
        print(f"ok {number} - {case.__name__}")
    except Exception as error:
        failed += 1
        print(f"not ok {number} - {case.__name__}\n# {type(error).__name__}: {error}")
sys.exit(failed > 0)
