# SPDX-License-Identifier: Apache-2.0
"""Tiny random models of the families that matter, with a word tokenizer: made here, nothing is downloaded.

models.py FOLDER [NAME...] makes those that are not there yet (all by default).
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

WORDS = 512  # token ids below 4 are special
SEED = 20_240
BLOCK = {"mla": 16, "attention": 128}  # tokens of a KV block on vLLM's CPU platform

_COMMON = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
}
_MLA = {
    **_COMMON,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": _COMMON["num_hidden_layers"],
}
_SPARSE = {**_MLA, "index_n_heads": 4, "index_head_dim": 128, "index_topk": 64}
_LLAMA = {**_COMMON, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
ARCHITECTURES = {
    "dsv32": ("deepseek_v32", _SPARSE),
    "glm5": ("glm_moe_dsa", _SPARSE),
    "dsv3": ("deepseek_v3", _MLA),
    "llama": ("llama", _LLAMA),
}


@dataclass(frozen=True)
class Model:
    """One configuration under test."""

    name: str
    folder: str  # whose weights
    title: str
    overrides: dict
    sparse: bool
    block: int
    block_bytes: int  # of all layers, in fp32
    offload: bool = False  # composed with vLLM's OffloadingConnector
    shared: bool = False  # Prefill's KV cache lies in shared memory

    @property
    def batch_invariant(self) -> bool:
        """Whether a request's numbers do not depend on what runs beside it (vLLM on CPU: not for sparse attention)."""
        return not self.sparse


def _indexer_layers(overrides: dict) -> int:
    """A pattern names each layer: F has an indexer of its own, S shares the last one's choice."""
    return overrides.get("index_topk_pattern", "F" * _COMMON["num_hidden_layers"]).count("F")


def _bytes(folder: str, overrides: dict) -> int:
    config, layers = ARCHITECTURES[folder][1], _COMMON["num_hidden_layers"]
    if folder == "llama":
        return layers * BLOCK["attention"] * 2 * config["num_key_value_heads"] * config["head_dim"] * 4
    main = layers * (config["kv_lora_rank"] + config["qk_rope_head_dim"]) * 4
    # An indexer entry: fp8 values and one fp32 scale.
    index = _indexer_layers(overrides) * (config["index_head_dim"] + 4) if "index_head_dim" in config else 0
    return BLOCK["mla"] * (main + index)


def _model(name: str, folder: str, title: str, offload: bool = False, shared: bool = False, **overrides) -> Model:
    block = BLOCK["attention" if folder == "llama" else "mla"]
    return Model(name, folder, title, overrides, folder in ("dsv32", "glm5"), block, _bytes(folder, overrides), offload, shared)


MODELS = {
    m.name: m
    for m in (
        _model("dsv32", "dsv32", "DeepSeek-V3.2"),
        _model("glm5", "glm5", "GLM-5"),
        _model(
            "glm5-fsfs",
            "glm5",
            "GLM-5, every second layer without an indexer, Prefill's KV in shared memory",
            shared=True,
            index_topk_pattern="FSFS",
        ),
        _model("dsv3", "dsv3", "DeepSeek-V3 (MLA)"),
        _model("llama", "llama", "Llama (plain attention)"),
        _model("multi", "llama", "Llama, MultiConnector with vLLM's OffloadingConnector on both sides", offload=True),
    )
}


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<s>", "</s>", "<pad>"] + [f"w{i}" for i in range(4, WORDS)]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = dict(zip(("unk_token", "bos_token", "eos_token", "pad_token"), words))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def _make(folder: Path, kind: str, config: dict) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config), dtype=torch.float32)
    model.save_pretrained(folder)
    _tokenizer(folder)


def ensure(root: Path, names: list[str]) -> None:
    """Makes the models that are missing under `root`; one made with other settings is made again."""
    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    for name in names:
        kind, config = ARCHITECTURES[name]
        folder, want = root / name, json.dumps([kind, config, SEED], sort_keys=True)
        stamp = folder / "made-from.json"
        if not stamp.exists() or stamp.read_text() != want:
            print(f"models: making {name}", flush=True)
            _make(folder, kind, config)
            stamp.write_text(want)


if __name__ == "__main__":
    ensure(Path(sys.argv[1]), sys.argv[2:] or list(ARCHITECTURES))
