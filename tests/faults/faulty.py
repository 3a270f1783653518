# SPDX-License-Identifier: Apache-2.0
"""The engine process of tests/e2e/driver.py with a transfer engine that injects faults, where the configuration asks for one."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

import driver


def serve(config: dict[str, Any], pipe: Connection, log: str) -> None:
    if fault := config.get("fault"):
        from rd2h import _vllm_options

        _vllm_options.engine_spec = lambda values, device: f"fault:{values['transfer_backend']},{fault}"
    driver.serve(config, pipe, log)
