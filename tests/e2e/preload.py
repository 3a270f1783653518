# SPDX-License-Identifier: Apache-2.0
"""Imported once, by the fork server that all engine processes come from: importing vLLM takes longer than all that they do with
it. Nothing here may start a thread or make an engine."""

import logging

import rd2h_cpu_sparse

logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # it warns that there is no Triton
rd2h_cpu_sparse.register()  # as vLLM does with installed plugins
import rd2h.vllm  # noqa: E402, F401
import vllm.model_executor.models.deepseek_v2  # noqa: E402, F401
import vllm.model_executor.models.llama  # noqa: E402, F401
import vllm.v1.engine.llm_engine  # noqa: E402, F401
from vllm import EngineArgs, SamplingParams  # noqa: E402, F401
