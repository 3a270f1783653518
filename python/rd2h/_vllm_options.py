# SPDX-License-Identifier: Apache-2.0
"""The options of ``kv_connector_extra_config``: one table with name, kind, default, range and help. Reading, the texts of errors
and the table in the documentation all come from it. Run ``python -m rd2h._vllm_options`` to print it."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Any

REQUIRED = object()
MINUTE, DAY = 60_000, 86_400_000


@dataclass(frozen=True)
class Option:
    """kind: "choice" (allowed: the values), "bool", "text", or "int" (allowed: lowest and highest). role: P, D or both."""

    name: str
    kind: str
    default: Any
    allowed: tuple
    role: str
    help: str

    def expected(self) -> str:
        if self.kind == "choice":
            return "one of " + ", ".join(self.allowed)
        if self.kind == "int":
            return f"a whole number from {self.allowed[0]} to {self.allowed[1]}"
        return {"bool": "true or false", "text": "a text that is not empty"}[self.kind]

    def accepts(self, value: Any) -> bool:
        if self.kind == "choice":
            return isinstance(value, str) and value in self.allowed
        if self.kind == "bool":
            return isinstance(value, bool)
        if self.kind == "text":
            return isinstance(value, str) and bool(value.strip())
        return isinstance(value, int) and not isinstance(value, bool) and self.allowed[0] <= value <= self.allowed[1]


def _ms(name: str, default: int, low: int, high: int, role: str, text: str) -> Option:
    return Option(name, "int", default, (low, high), role, text + " (milliseconds)")


OPTIONS = (
    Option(
        "transfer_backend",
        "choice",
        REQUIRED,
        ("auto", "local", "tcp", "ucx", "memfabric"),
        "both",
        "transfer engine: local (another process of this host), tcp (over the network), auto (the better of these for each peer), "
        "ucx (RDMA and what else a UCX on this host can), memfabric (NPU memory, by MemFabric)",
    ),
    Option(
        "memfabric_transfer_protocol",
        "choice",
        "sdma",
        ("sdma", "device_rdma", "device_urma", "device_uboe", "host_rdma", "host_tcp", "host_urma"),
        "both",
        "data path of memfabric, equal on both sides; host_ ones are for memory of the host",
    ),
    Option("use_layerwise", "bool", True, (), "both", "KV goes layer by layer: there is no other way, false is refused"),
    Option(
        "on_read_failure",
        "choice",
        "isolate",
        ("isolate", "raise"),
        "P",
        "a failed or lost reader ends only its requests (isolate), or the engine (raise)",
    ),
    Option("host", "text", "127.0.0.1", (), "both", "address under which the other engine reaches this process"),
    Option("bind_host", "text", None, (), "D", "address that the control port binds; not set: as host"),
    Option(
        "layer_gate",
        "choice",
        "auto",
        ("auto", "always", "never"),
        "P",
        "wait before a layer is written until its readers have answered; auto: only where layers share storage",
    ),
    Option(
        "tcp_targets",
        "text",
        None,
        (),
        "D",
        "addresses and networks that engine tcp may connect to, joined by +, or any; not set: the host that Prefill's session names",
    ),
    _ms("handshake_ms", 10_000, 100, 10 * MINUTE, "P", "connect to a Decode rank and have the layout acknowledged"),
    _ms("hold_ms", 240_000, 100, DAY, "P", "longest wait for a reader's answer before it is given up"),
    _ms("liveness_ms", 5_000, 100, 10 * MINUTE, "P", "a process that is silent for so long is dead"),
    _ms("settle_ms", 2_000, 1, 10 * MINUTE, "P", "longest wait for readers at shutdown"),
    _ms("event_ms", 60_000, 1, 60 * MINUTE, "P", "longest wait for a device to have written a layer"),
    Option("max_queue_mb", "int", 256, (1, 65_536), "P", "cap of what is queued for one Decode rank, in MiB"),
    Option(
        "shared_memory",
        "bool",
        False,
        (),
        "P",
        "the KV cache of a CPU engine lies in memory that Decode on the same host maps (transfer_backend local or auto)",
    ),
    Option("engine_threads", "int", 2, (1, 64), "D", "threads of an engine whose reads block"),
    _ms("park_ms", 2_000, 1, 10 * MINUTE, "D", "a layer that is ready before its destinations are known"),
    _ms("queue_ms", 600_000, 100, DAY, "D", "from allocation to the first layer of a request, or to the answer of its rendezvous"),
    _ms("progress_ms", 120_000, 100, DAY, "D", "between two layers of a request, or from the answer of its rendezvous to the first"),
    _ms("probe_ms", 1_000, 10, 10 * MINUTE, "D", "how often Prefill ranks with open requests are probed"),
    _ms("read_timeout_ms", 31_000, 100, DAY, "D", "longest single read of the transfer engine"),
    Option("read_retries", "int", 0, (0, 10), "D", "a read that failed in transfer is tried so often again"),
    Option(
        "digest",
        "choice",
        "off",
        ("off", "log", "fail"),
        "both",
        "compare every block that Decode read with a digest made by Prefill, where both sides want it: a difference is counted and logged, "
        "or fails the request; for KV in host memory",
    ),
    Option("max_message_mb", "int", 64, (1, 1_024), "D", "largest control message, in MiB"),
    Option("max_peers", "int", 4_096, (1, 65_536), "D", "Prefill ranks connected at once"),
    Option("max_requests", "int", 65_536, (1, 1_048_576), "D", "requests that wait for KV at once"),
    Option(
        "reply_on_read_failure",
        "bool",
        False,
        (),
        "D",
        "answer a Prefill of the older protocol with READ_FAILED when any read of its batch failed",
    ),
    Option("curve_secret_file", "text", None, (), "both", "file with this engine's secret key (`rd2h keys`); not set: no keys"),
    Option(
        "curve_peers_file",
        "text",
        None,
        (),
        "both",
        "file with the public keys of the other side: Prefill engines that may connect, or Decode engines to connect to",
    ),
    Option("dump_signal", "choice", "none", ("none", "SIGUSR1", "SIGUSR2"), "both", "a worker logs its state at this signal"),
    Option("legacy_metaserver", "bool", False, (), "D", "an HTTP error of the metaserver counts as delivered"),
    _ms("connect_timeout_ms", 3_000, 10, 10 * MINUTE, "D", "one attempt to reach the metaserver"),
    Option("max_attempts", "int", 5, (1, 1_000), "D", "attempts to reach the metaserver, and to be taken by one that answers 503"),
    _ms("answer_timeout_ms", 600_000, 100, DAY, "D", "the metaserver's answer, which comes when Prefill has finished"),
    Option(
        "rendezvous_ca",
        "text",
        None,
        (),
        "D",
        "PEM file of the authorities that the metaserver's https is trusted by; not set: the machine's own store",
    ),
    Option("max_inflight", "int", 4_096, (1, 65_536), "D", "rendezvous on the wire at once; more wait in order"),
)
_BY_NAME = {o.name: o for o in OPTIONS}


def read(extra: dict[str, Any]) -> dict[str, Any]:
    """Every option with its value. Raises ValueError, one line that names the option, what was given and what is allowed."""
    for name in extra:
        if name not in _BY_NAME:
            raise ValueError(f"kv_connector_extra_config: unknown option {name!r}; known are {', '.join(_BY_NAME)}")
    values = {}
    for o in OPTIONS:
        value = extra.get(o.name, o.default)
        if value is REQUIRED:
            raise ValueError(f"kv_connector_extra_config: {o.name} is missing; set it to {o.expected()}")
        if o.name in extra and not o.accepts(value):
            raise ValueError(f"kv_connector_extra_config: {o.name} is {value!r}; it must be {o.expected()}")
        values[o.name] = value
    values["bind_host"] = values["bind_host"] or values["host"]
    return values


def ucx_library() -> str | None:
    """libucp of the Python package libucx-cu12, where it is installed and RD2H_UCX_LIBRARY names no other."""
    found = None if os.environ.get("RD2H_UCX_LIBRARY") else importlib.util.find_spec("libucx")
    for folder in (found and found.submodule_search_locations) or ():
        library = os.path.join(folder, "lib/libucp.so.0")
        if os.path.exists(library) and "," not in library:
            return library
    return None


def engine_spec(values: dict[str, Any], device: int | None) -> str:
    """The transfer engine with its options, as the C library takes it. device: the worker's NPU, where it has one."""
    name = values["transfer_backend"]
    if name in ("auto", "tcp") and values["tcp_targets"]:
        return f"{name},targets={values['tcp_targets']}"
    if name == "ucx" and (library := ucx_library()):
        return f"{name},lib={library}"
    if name != "memfabric":
        return name
    at = "" if device is None else f",device={device}"
    return f"{name},protocol={values['memfabric_transfer_protocol']}{at}"


def table() -> str:
    """The options as a Markdown table."""
    rows = ["| option | default | allowed | role | meaning |", "|---|---|---|---|---|"]
    for o in OPTIONS:
        shown = {REQUIRED: "required", None: "-", False: "false", True: "true"}
        default = shown.get(o.default, o.default) if o.kind != "int" else o.default
        rows.append(f"| {o.name} | {default} | {o.expected()} | {o.role} | {o.help} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table())
