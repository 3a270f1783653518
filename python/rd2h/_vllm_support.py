# SPDX-License-Identifier: Apache-2.0
"""What a cluster's operator asks for beside the transfer itself: keys from files, and the state of a rank on a signal."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from pathlib import Path
from typing import Any

from rd2h._log import logger


def _read(option: str, path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as e:
        raise ValueError(f"kv_connector_extra_config: {option}: {path} cannot be read: {e.strerror}") from None


def keys(options: dict[str, Any], peers: str) -> dict[str, str | None]:
    """Keys of the control channel as the C options name them; peers: how the role calls the list of the other side's keys."""
    secret, others = options["curve_secret_file"], options["curve_peers_file"]
    if not secret and not others:
        return {}
    if not secret or not others:
        raise ValueError("kv_connector_extra_config: curve_secret_file and curve_peers_file belong together; set both or none")
    found = {"curve_secret": _read("curve_secret_file", secret), peers: _read("curve_peers_file", others)}
    if os.stat(secret).st_mode & 0o077:
        logger.warning("rd2h: %s holds a secret key and can be read by others than its owner: chmod 600", secret)
    return found


_shown: weakref.WeakSet[Any] = weakref.WeakSet()  # ranks of this process whose state is asked for
_taken: tuple[int, str] | None = None  # process id and signal: taken once


def _serve(fd: int, number: int) -> None:
    with os.fdopen(fd, "rb", buffering=0) as pipe:
        while numbers := pipe.read(64):
            for line in [ln for rank in list(_shown) for ln in rank.dump().splitlines()] if number in numbers else ():
                logger.info("rd2h: %s", line)


def _take(name: str) -> None:
    """The signal's number comes through a pipe that a thread of its own reads: also while the main thread is inside a call."""
    number = signal.Signals[name]
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    try:
        signal.signal(number, lambda *_: None)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    except ValueError:
        raise ValueError(f"kv_connector_extra_config: dump_signal: only a process's main thread can take {name}") from None
    if before >= 0:
        signal.set_wakeup_fd(before)
        raise ValueError("kv_connector_extra_config: dump_signal: another part of this process reads its signals already")
    threading.Thread(target=_serve, args=(reader, number), name="rd2h-state", daemon=True).start()


def state_on_signal(options: dict[str, Any], rank: Any) -> None:
    """Each time the process gets the signal, rank.dump() goes to the log."""
    global _taken
    name = options["dump_signal"]
    if name == "none":
        return
    if _taken != (os.getpid(), name):
        _take(name)
        _taken = (os.getpid(), name)
    _shown.add(rank)
