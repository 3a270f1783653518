# SPDX-License-Identifier: Apache-2.0
"""Log lines of the C library in vLLM's log. They come from threads of their own, which must never wait for the interpreter: so
they travel through a pipe that drops when it is full, and a daemon thread of Python's reads it, asleep while nothing is
said."""

from __future__ import annotations

import fcntl
import logging
import os
import threading

from rd2h._rd2h import lib
from vllm.logger import init_logger

logger = init_logger("vllm.rd2h")
_LEVELS = {
    lib.RD2H_LOG_ERROR: logging.ERROR,
    lib.RD2H_LOG_WARN: logging.WARNING,
    lib.RD2H_LOG_INFO: logging.INFO,
    lib.RD2H_LOG_DEBUG: logging.DEBUG,
}
_lock = threading.Lock()
_started_in = 0  # process id: a forked child has no reader thread


def _level() -> int:
    """The C level that shows what the logger shows."""
    on = [c for c, python in _LEVELS.items() if logger.isEnabledFor(python)]
    return max(on, default=lib.RD2H_LOG_ERROR)


def emit(line: bytes) -> None:
    """One line of the pipe, "<level> <text>", to the logger."""
    level, _, text = line.partition(b" ")
    known = _LEVELS.get(int(level) if level.isdigit() else 0, logging.INFO)
    logger.log(known, "rd2h: %s", text.decode("utf-8", "replace"))


def _read(fd: int) -> None:
    with os.fdopen(fd, "rb", buffering=0) as pipe:
        rest = b""
        while chunk := pipe.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                emit(line)


def start() -> None:
    """Once a process; later calls do nothing."""
    global _started_in
    with _lock:
        if _started_in == os.getpid():
            return
        _started_in = os.getpid()
        reader, writer = os.pipe2(os.O_CLOEXEC)
        fcntl.fcntl(writer, fcntl.F_SETFL, fcntl.fcntl(writer, fcntl.F_GETFL) | os.O_NONBLOCK)
        threading.Thread(target=_read, args=(reader,), name="rd2h-log", daemon=True).start()
        lib.rd2h_log_fd_set(writer, _level())
