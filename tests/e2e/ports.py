# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that start later: outside the range from which the system takes ports of outgoing connections, else one of
those could have it by then."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 10_000
TRIES = 1_000


def _bindable(port: int) -> bool:
    with socket.socket() as s:
        try:
            s.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port(count: int = 1) -> int:
    """The first of `count` neighbouring ports that nobody uses."""
    highest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]) - count
    source = random.SystemRandom()
    for _ in range(TRIES):
        port = source.randrange(LOWEST, max(highest, LOWEST + TRIES))
        if all(_bindable(port + i) for i in range(count)):
            return port
    raise RuntimeError(f"no {count} free ports from {LOWEST} to {highest}")
