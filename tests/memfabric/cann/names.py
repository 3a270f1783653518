# SPDX-License-Identifier: Apache-2.0
"""names.py LIBRARY SPECIAL.c: C for every name of Ascend's libraries that stands in MemFabric's library, but for those that
SPECIAL.c defines: functions that return 0."""
import re
import sys
from pathlib import Path

NAME = re.compile(rb"(?:acl|hal|rt[A-Z]|ra_|Ra[A-Z]|Tsd|drv|dcmi|Hccl|Hcomm|devmm_|svm_)[A-Za-z_0-9]*(?=\0)")
PRECEDED = re.compile(rb"(?<![\x20-\x7e])" + NAME.pattern)


def main() -> None:
    library, special = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]).read_text()
    defined = set(re.findall(r"^(?:int|const char) \*?(\w+)\(", special, re.M))
    names = {n.decode() for n in PRECEDED.findall(library)} - defined
    print("/* generated */\nint g_devmm_mem_dev = -1;")
    print("\n".join(f"int {n}(void) {{ return 0; }}" for n in sorted(names - {"g_devmm_mem_dev"})))


if __name__ == "__main__":
    main()
