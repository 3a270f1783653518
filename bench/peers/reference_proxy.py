# SPDX-License-Identifier: Apache-2.0
"""Runs the reference's layerwise proxy, unmodified, where neither vLLM nor an NPU is: reference_proxy.py SOURCE ARGUMENTS...

Of vLLM it imports a logger and, through a module of the connector, a base class; of that module it uses one constant. These two names are
all that is put in the place of vLLM.
"""
import logging
import runpy
import sys
import types
from pathlib import Path

EXAMPLE = "examples/disaggregated_prefill_v1/load_balance_proxy_layerwise_server_example.py"


def package(name: str, path: str = "", **names) -> None:
    m = types.ModuleType(name)
    m.__path__ = [path] if path else []
    for k, v in names.items():
        setattr(m, k, v)
    sys.modules[name] = m


def main() -> None:
    source = Path(sys.argv[1])
    package("vllm")
    package("vllm.logger", init_logger=logging.getLogger)
    name = "vllm"
    for part in ("distributed", "kv_transfer", "kv_connector", "v1"):
        package(name := f"{name}.{part}")
    package(name + ".base", KVConnectorMetadata=type("KVConnectorMetadata", (), {}))
    where = source
    for part in ("vllm_ascend", "distributed", "kv_transfer", "kv_p2p", "sfa_pd_rd2h"):
        where = where / part
        package(".".join(where.relative_to(source).parts), str(where))  # not its __init__, which wants an NPU
    sys.argv = sys.argv[1:]
    sys.argv[0] = str(source / EXAMPLE)
    runpy.run_path(sys.argv[0], run_name="__main__")


main()
