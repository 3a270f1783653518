# SPDX-License-Identifier: Apache-2.0
"""Certificates that are their own authority, made for one test."""
from __future__ import annotations

import functools
import ssl
import subprocess
import tempfile
from pathlib import Path


class Certificate:
    """Use as a context manager. names: as in subjectAltName."""

    def __init__(self, names: str = "IP:127.0.0.1,DNS:localhost") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rd2h-proxy-cert-")
        self.cert, self.key = Path(self._folder.name) / "cert.pem", Path(self._folder.name) / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                        "-subj", "/CN=rd2h test", "-addext", f"subjectAltName={names}", "-keyout", self.key, "-out", self.cert],
                       check=True, capture_output=True)

    def __enter__(self) -> Certificate:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        return context

    @functools.cache
    def client(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.cert)
