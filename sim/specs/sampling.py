"""What vLLM's sampler does unless a request says otherwise: the checkpoint's own top-p and top-k, by version.

vLLM takes defaults from `generation_config.json`; where that asks for top-p or top-k, every sampled row is truncated.
"""

from fnmatch import fnmatchcase
from typing import Literal

from sim.specs.catalog import short_name
from sim.specs.releases import parse_version

Sampling = Literal["default", "greedy"]
"""`default`: as the checkpoint's generation_config.json says; `greedy`: temperature 0, which benchmark clients send."""

Truncation = Literal["sort", "triton", "flashinfer"]
"""How rows are truncated: PyTorch sorts all logits, later versions have kernels that do not."""

# Checkpoints whose generation_config.json (huggingface.co/<name>/raw/main/generation_config.json) sets top_p or top_k, by short
# name; as published, not read from the hub here.
# Not so Mixtral, Mistral-Nemo, CodeLlama, Yi's and Qwen2.5's base models, gpt-oss and Kimi-K2.
TRUNCATING = (
    "llama-2-*",
    "llama-3*",
    "meta-llama-3*",
    "llama-4-*",
    "qwen2.5-*-instruct*",
    "qwen3*",
    "deepseek-r1*",
    "deepseek-v*",
    "minimax-m2*",
    "gemma-*-it",
)
# vllm-project/vllm #33538 (merged in February 2026) and #40376 (April 2026), by the first release after each.
TRITON_SINCE = (0, 17, 0)
FLASHINFER_SINCE = (0, 21, 0)


def truncation(model: str, vllm_version: str, sampling: Sampling = "default") -> Truncation | None:
    """How vLLM truncates the logits of that checkpoint (a hub id or short name); None where it does not."""
    name = short_name(model).lower()
    if sampling == "greedy" or not any(fnmatchcase(name, pattern) for pattern in TRUNCATING):
        return None
    version = parse_version(vllm_version)
    if version >= FLASHINFER_SINCE:
        return "flashinfer"
    return "triton" if version >= TRITON_SINCE else "sort"
