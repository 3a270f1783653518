# SPDX-License-Identifier: Apache-2.0
"""rd2h: the KV cache of a prompt, pulled from a Prefill engine by a Decode engine, layer by layer.

The rules live in the C library librd2h. This package is its Python face:

* ``rd2h.vllm``: the vLLM connector ``SfaRemoteD2HConnector`` (needs vLLM 0.32);
* ``rd2h.core``: the objects of the C API for other engines (needs nothing but cffi).
"""

from rd2h.core import Rd2hError, version

__all__ = ["Rd2hError", "version"]
__version__ = version()
