# SPDX-License-Identifier: Apache-2.0
"""Makes vLLM's CPU platform accept sparse attention models. It is loaded by vLLM as a general plugin, before any model module:
what those import by name is exchanged where it is defined, and the rest when a layer asks for it. A test bed, written to be
read."""

from __future__ import annotations


def register() -> None:
    """Idempotent; does nothing on other platforms."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        from rd2h_cpu_sparse import install

        install.once()
