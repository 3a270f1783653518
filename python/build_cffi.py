# SPDX-License-Identifier: Apache-2.0
"""Writes the C source of the extension rd2h._rd2h: build_cffi.py OUTPUT DEPFILE CC... (cffi's API mode: the compiler checks every
declaration against the public headers)."""
import sys
from pathlib import Path

import cffi

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
import make_cdef  # noqa: E402

output, depfile, *cc = sys.argv[1:]
ffi = cffi.FFI()
ffi.cdef(make_cdef.make(cc))
ffi.set_source("rd2h._rd2h", "#include <rd2h/rd2h.h>", py_limited_api=True)
ffi.emit_c_code(output)
Path(depfile).write_text(f"{output}: {' '.join(map(str, [make_cdef.__file__, *make_cdef.HEADERS]))}\n")
