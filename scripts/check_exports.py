#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What librd2h.so exports is what the public headers declare with RD2H_API: check_exports.py [LIBRARY]."""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "build/librd2h.so"


def declared() -> dict[str, str]:
    """Function name -> header, of every declaration marked RD2H_API."""
    found = {}
    for header in sorted((ROOT / "include/rd2h").glob("*.h")):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
        for name in re.findall(r"^RD2H_API\b[^;(]*?\b(\w+)\s*\(", text, re.M):
            found[name] = header.name
    return found


def exported(library: Path) -> set[str]:
    lines = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    # The node of the symbol map itself is an absolute symbol, no function.
    return {name.split("@")[0] for _, kind, name in map(str.split, lines.splitlines()) if kind != "A"}


def main() -> int:
    library = Path(sys.argv[1]) if len(sys.argv) > 1 else LIBRARY
    headers, symbols = declared(), exported(library)
    for name in sorted(headers.keys() - symbols):
        print(f"include/rd2h/{headers[name]}: {name} is declared but {library.name} does not export it: define it, or drop RD2H_API")
    for name in sorted(symbols - headers.keys()):
        print(f"{library.name}: exports {name}, which no public header declares: hide it (static, or no RD2H_API)")
    print(f"{len(headers)} functions declared, {len(symbols)} exported")
    return headers.keys() != symbols


if __name__ == "__main__":
    sys.exit(main())
