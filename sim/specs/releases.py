"""What differs between vLLM versions: defaults, rule switches and known arguments, in one table.

Read from the released packages listed here; what lies between two of them follows the older one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sim.errors import ConfigError, nearest
from sim.specs.capture_sizes import CaptureRules
from sim.specs.engine import CudagraphMode
from sim.specs.rules import SchedulingRules


@dataclass(frozen=True, slots=True)
class Release:
    """Defaults and rules of one vLLM version.

    `async_with_pipeline`: async scheduling works with pipeline stages, as its model runner V2 is the default (0.33+).
    `full_isl_gate`: `scheduler_reserve_full_isl` exists and is on by default (0.19+).
    `huge_gpu_tier`: GPUs from 160 GiB on get 16,384 batched tokens in the server too (0.32+).
    `subtracts_graph_memory`: the KV budget is reduced by an estimate of the CUDA graphs (0.21+).
    `counts_tokens_of_requests`: the logged cache size is concurrency x max_model_len, not blocks x block size (0.21+).
    """

    version: str
    gpu_memory_utilization: float
    cudagraph_mode: CudagraphMode
    async_scheduling: bool
    async_with_pipeline: bool
    full_isl_gate: bool
    huge_gpu_tier: bool
    subtracts_graph_memory: bool
    counts_tokens_of_requests: bool
    capture: CaptureRules
    rules: SchedulingRules


_V0_8_5 = Release(
    version="0.8.5",
    gpu_memory_utilization=0.90,
    cudagraph_mode="PIECEWISE",
    async_scheduling=False,
    async_with_pipeline=False,
    full_isl_gate=False,
    huge_gpu_tier=False,
    subtracts_graph_memory=False,
    counts_tokens_of_requests=False,
    capture=CaptureRules(
        cap_follows_max_num_seqs=False, wide_spacing=False, adds_limits=False, blackwell_cap=512, gpt_oss_cap=512
    ),
    rules=SchedulingRules(
        lone_request_ignores_threshold=False,
        unhashed_blocks_first=False,
        preempts_past_itself=False,
        refunds_preempted_tokens=False,
    ),
)
_V0_10_2 = replace(
    _V0_8_5,
    version="0.10.2",
    capture=replace(_V0_8_5.capture, cap_follows_max_num_seqs=True),
)
_V0_11_0 = replace(_V0_10_2, version="0.11.0", cudagraph_mode="FULL_AND_PIECEWISE")
_V0_12_0 = replace(_V0_11_0, version="0.12.0", capture=replace(_V0_11_0.capture, wide_spacing=True, gpt_oss_cap=1024))
_V0_14_1 = replace(
    _V0_12_0,
    version="0.14.1",
    async_scheduling=True,
    rules=replace(_V0_12_0.rules, refunds_preempted_tokens=True),
)
_V0_15_1 = replace(_V0_14_1, version="0.15.1")
_V0_17_1 = replace(_V0_15_1, version="0.17.1")
_V0_19_0 = replace(_V0_17_1, version="0.19.0", full_isl_gate=True)
_V0_19_1 = replace(_V0_19_0, version="0.19.1")
_V0_21_0 = replace(
    _V0_19_1,
    version="0.21.0",
    gpu_memory_utilization=0.92,
    subtracts_graph_memory=True,
    counts_tokens_of_requests=True,
)
_V0_25_1 = replace(_V0_21_0, version="0.25.1", rules=replace(_V0_21_0.rules, unhashed_blocks_first=True))
_V0_32_0 = replace(
    _V0_25_1,
    version="0.32.0",
    huge_gpu_tier=True,
    capture=replace(_V0_25_1.capture, adds_limits=True, blackwell_cap=1024),
    rules=replace(_V0_25_1.rules, lone_request_ignores_threshold=True),
)
_V0_33_0 = replace(
    _V0_32_0,
    version="0.33.0",
    async_with_pipeline=True,
    rules=replace(_V0_32_0.rules, preempts_past_itself=True),
)

RELEASES: Mapping[str, Release] = {
    release.version: release
    for release in (
        _V0_8_5,
        _V0_10_2,
        _V0_11_0,
        _V0_12_0,
        _V0_14_1,
        _V0_15_1,
        _V0_17_1,
        _V0_19_0,
        _V0_19_1,
        _V0_21_0,
        _V0_25_1,
        _V0_32_0,
        _V0_33_0,
    )
}
NEWEST = _V0_33_0.version

SINCE: Mapping[str, str] = {
    "async_scheduling": "0.10.2",
    "cudagraph_mode": "0.10.2",
    "max_cudagraph_capture_size": "0.12.0",
    "performance_mode": "0.17.0",
    "scheduler_reserve_full_isl": "0.19.0",
    "watermark": "0.25.1",
    "long_prefill_token_threshold_adaptive": "0.32.0",
    "max_num_active_seqs": "0.32.0",
}
"""Arguments that older versions do not know, with the first of the versions read that has them."""

_VERSION = re.compile(r"(?:vllm[ =]*)?v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-.+ (]*[a-z].*)?", re.IGNORECASE)


def parse_version(text: str) -> tuple[int, int, int]:
    """`0.15.1`, `v0.15`, `vllm 0.19.0` or `0.21.0rc1` as comparable numbers; ConfigError for anything else."""
    if not (found := _VERSION.fullmatch(text.strip())):
        raise ConfigError(
            f"vllm_version must look like {NEWEST}, got {text!r}.{nearest(text, RELEASES) or ' Leave it out for the newest.'}"
        )
    major, minor, patch = found.groups(default="0")
    return int(major), int(minor), int(patch)


def unknown_arguments(vllm_version: str) -> dict[str, str]:
    """Arguments that this version does not know yet, with the first that does. Raises ConfigError as `parse_version`."""
    asked = parse_version(vllm_version)
    return {name: since for name, since in SINCE.items() if asked < parse_version(since)}


def release_for(vllm_version: str | None) -> Release:
    """The newest known release not above `vllm_version`, or the newest of all for None; ConfigError before 0.8."""
    wanted = parse_version(vllm_version or NEWEST)
    if wanted < (0, 8, 0):
        raise ConfigError(
            f"vllm_version must be 0.8 or newer (older ones run another engine), got {vllm_version!r}; use {_V0_8_5.version}."
        )
    known = [release for version, release in RELEASES.items() if parse_version(version) <= wanted]
    return known[-1] if known else _V0_8_5
