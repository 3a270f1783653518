# SPDX-License-Identifier: Apache-2.0
"""Makes the reference connector (Python package vllm-ascend, unmodified, unpacked at $REFERENCE_SRC) importable without an NPU and
without vLLM: only the names that its modules look up at import are there. Import before anything of the reference.

The transfer engine is one that moves bytes for real: it reads the other process with process_vm_readv. The process id is the port
of the session string "host:PID", which is the form the reference uses itself.
"""
from __future__ import annotations

import ctypes
import logging
import os
import sys
import types
from types import SimpleNamespace

import torch
import zmq

IOVECS = 1024  # Linux takes no more in one call


def _module(name: str, **names) -> types.ModuleType:
    m = types.ModuleType(name)
    m.__path__ = []  # a package: its parts may be looked up
    for k, v in names.items():
        setattr(m, k, v)
    sys.modules[name] = m
    parent, _, leaf = name.rpartition(".")
    if parent and parent in sys.modules:
        setattr(sys.modules[parent], leaf, m)
    return m


def _types(*names: str) -> dict[str, type]:
    return {n: type(n, (), {}) for n in names}


# ---- torch.npu ----
class _Event:
    def record(self, *_):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True


def _torch() -> None:
    try:
        torch.utils.rename_privateuse1_backend("npu")
    except RuntimeError:
        pass
    torch.npu = _module("torch.npu", set_device=lambda d: None, current_device=lambda: 0, is_available=lambda: False, Event=_Event,
                        Stream=object)
    _module("torch_npu")


# ---- vllm ----
def _zmq_socket(ctx, path, socket_type, bind=None, identity=None, linger=None, router_handover=False):
    s = ctx.socket(socket_type)
    s.setsockopt(zmq.RCVHWM, 0)
    s.setsockopt(zmq.SNDHWM, 0)
    if router_handover and socket_type == zmq.ROUTER:
        s.setsockopt(zmq.ROUTER_HANDOVER, 1)
    if identity is not None:
        s.setsockopt(zmq.IDENTITY, identity)
    if linger is not None:
        s.setsockopt(zmq.LINGER, linger)
    (s.bind if bind or (bind is None and socket_type not in (zmq.PUSH, zmq.SUB, zmq.XSUB)) else s.connect)(path)
    return s


class _Connector:
    def __init__(self, vllm_config=None, role=None, kv_cache_config=None):
        self._connector_metadata = None


def _logger() -> logging.Logger:
    log = logging.getLogger("vllm")
    log.setLevel(os.environ.get("VLLM_LOGGING_LEVEL", "WARNING"))
    for n in ("debug", "info", "warning"):
        setattr(log, n + "_once", getattr(log, n))
    return log


def _vllm() -> None:
    log = _logger()
    pp = SimpleNamespace(rank_in_group=int(os.environ.get("PP_RANK", "0")), world_size=int(os.environ.get("PP_SIZE", "1")))
    tp = SimpleNamespace(rank_in_group=0, world_size=1, cpu_group=None)
    world = SimpleNamespace(local_rank=0, world_size=1, device_group=None)
    _module("vllm")
    _module("vllm.logger", logger=log, init_logger=lambda name: log)
    _module("vllm.config", get_current_vllm_config=lambda: None, **_types("VllmConfig", "ParallelConfig"))
    _module("vllm.distributed", get_world_group=lambda: world, get_tp_group=lambda: tp, get_pp_group=lambda: pp,
            get_tensor_model_parallel_rank=lambda: 0, get_tensor_model_parallel_world_size=lambda: 1)
    _module("vllm.distributed.parallel_state", get_world_group=lambda: world, get_tp_group=lambda: tp,
            init_model_parallel_group=None, **_types("GroupCoordinator"))
    base = "vllm.distributed.kv_transfer"
    _module(base, get_kv_transfer_group=lambda: None, has_kv_transfer_group=lambda: False)
    _module(base + ".kv_connector")
    factory = type("KVConnectorFactory", (), {"_registry": {}, "register_connector": classmethod(lambda *a: None)})
    _module(base + ".kv_connector.factory", KVConnectorFactory=factory)
    _module(base + ".kv_connector.v1")
    _module(base + ".kv_connector.v1.base", KVConnectorBase_V1=_Connector, supports_hma=lambda c: True,
            KVConnectorRole=SimpleNamespace(SCHEDULER=0, WORKER=1), **_types("KVConnectorMetadata", "SupportsHMA"))
    _module(base + ".kv_connector.v1.multi_connector", MultiConnector=type("MultiConnector", (_Connector,), {}))
    _module("vllm.utils")
    _module("vllm.utils.network_utils", get_ip=lambda: "127.0.0.1", make_zmq_socket=_zmq_socket, is_valid_ipv6_address=lambda a: ":" in a,
            make_zmq_path=lambda scheme, host, port=None: f"{scheme}://{host}" + ("" if port is None else f":{port}"))
    _module("vllm.utils.math_utils", cdiv=lambda a, b: -(a // -b), round_down=lambda x, y: x // y * y,
            round_up=lambda x, y: (x + y - 1) // y * y)
    _module("vllm.v1")
    _module("vllm.v1.attention")
    _module("vllm.v1.attention.backend", **_types("AttentionBackend", "AttentionMetadata"))
    _module("vllm.v1.core")
    _module("vllm.v1.core.kv_cache_manager", **_types("KVCacheBlocks"))
    _module("vllm.v1.core.sched")
    _module("vllm.v1.core.sched.output", **_types("SchedulerOutput"))
    _module("vllm.v1.kv_cache_interface", **_types("KVCacheConfig", "KVCacheSpec", "AttentionSpec", "UniformTypeKVCacheSpecs"))
    _module("vllm.v1.request", **_types("Request"))
    _module("vllm.v1.utils", **_types("CpuGpuBuffer"))


# ---- the transfer engine ----
class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t
_libc.process_vm_readv.argtypes = [ctypes.c_int, ctypes.POINTER(_Iovec), ctypes.c_ulong, ctypes.POINTER(_Iovec), ctypes.c_ulong,
                                   ctypes.c_ulong]


class Engine:
    """The reference's engine interface. move False: counts only. fail_on: calls, from 1, that return an error; 0 among them: all."""

    def __init__(self, move: bool = True, fail_on=()):
        self.move, self.fail_on, self.calls, self.bytes = move, set(fail_on), 0, 0

    def initialize(self, *_, **__):
        return 0

    def register_memory(self, base, size):
        return 0

    def get_rpc_port(self):
        return os.getpid()

    def batch_transfer_sync_read(self, session, local, peer, length):
        self.calls += 1
        self.bytes += sum(length)
        if self.calls in self.fail_on or 0 in self.fail_on:
            return -7
        pid = int(session.rpartition(":")[2])
        for i in range(0, len(local) if self.move else 0, IOVECS):
            part = slice(i, i + IOVECS)
            to = (_Iovec * len(local[part]))(*zip(local[part], length[part]))
            source = (_Iovec * len(local[part]))(*zip(peer[part], length[part]))
            if _libc.process_vm_readv(pid, to, len(to), source, len(source), 0) != sum(length[part]):
                return -(ctypes.get_errno() or 1)
        return 0


def install() -> None:
    sys.path.insert(0, os.environ["REFERENCE_SRC"])
    _torch()
    _vllm()
    _module("vllm_ascend.logger")  # the real one writes log files under the home folder
    _module("memfabric_hybrid", TransferEngine=Engine, set_log_level=lambda n: 0, set_conf_store_tls=lambda on, path: 0)
