"""What differs between vLLM versions: each rule beside the version that brought it.

Since when there is an argument, and its default where the version alone decides, stands with it in engine.py. Most were read off the released packages, and schedules and defaults of many versions were recorded; docs/engine.md says
which. Patch releases that lie between two recorded ones follow the version that brought a rule.
"""

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from sim.errors import ConfigError, nearest
from sim.specs.arguments import Argument
from sim.specs.capture_sizes import CaptureRules
from sim.specs.engine import ARGUMENTS, CudagraphMode
from sim.specs.model import StateKind
from sim.specs.rules import ScanStep, SchedulingRules

OLDEST = "0.8.5"
NEWEST = "0.33.0"
KNOWN_VERSIONS = (
    *(
        OLDEST,
        "0.9.0",
        "0.9.1",
        "0.9.2",
        "0.10.0",
        "0.10.1",
        "0.10.2",
        "0.11.0",
        "0.11.1",
        "0.11.2",
        "0.12.0",
        "0.13.0",
    ),
    *("0.14.0", "0.14.1", "0.15.0", "0.15.1", "0.16.0", "0.17.0", "0.17.1", "0.18.0", "0.18.1", "0.19.0", "0.19.1"),
    *("0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0"),
    *("0.27.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", NEWEST),
)
"""Those whose rules are known; any other follows the newest of them that is not above it."""

PRIORITY_SINCE = "0.9.2"
"""The first version whose V1 scheduler has the policy "priority"."""

SWITCHES_CHUNKED_PREFILL_SINCE = "0.11.1"
"""The first version whose V1 engine lets chunked prefill be switched off."""

_VERSION = re.compile(r"(?:vllm[ =]*)?v?(\d+)\.(\d+)(?:\.(\d+))?(?:[-.+ (]*[a-z].*)?", re.IGNORECASE)


@cache
def parse_version(text: str) -> tuple[int, int, int]:
    """`0.15.1`, `v0.15`, `vllm 0.19.0` or `0.21.0rc1` as comparable numbers; ConfigError for anything else."""
    if not (found := _VERSION.fullmatch(text.strip())):
        raise ConfigError(
            f"vllm_version must look like {NEWEST}, got {text!r}.{nearest(text, KNOWN_VERSIONS) or ' Leave it out for the newest.'}"
        )
    major, minor, patch = found.groups(default="0")
    return int(major), int(minor), int(patch)


def is_newer_than_known(vllm_version: str) -> bool:
    """Whether its rules may differ from those of the newest known, which it is taken as. Raises as `parse_version`."""
    return parse_version(vllm_version) > parse_version(NEWEST)


@dataclass(frozen=True, slots=True)
class Release:
    """Defaults and rules of one vLLM version.

    `async_with_pipeline`: async scheduling works with pipeline stages, and is then the default too; from 0.31 on with model runner V2
    only, which a server with Triton has (`use_v2_model_runner`).
    `lowers_max_num_seqs`: the default of max_num_seqs is lowered to max_num_batched_tokens; before, that was an error.
    `fits_token_budget`: the default of max_num_batched_tokens fits max_num_seqs x max_model_len, and without chunked
    prefill holds a whole prompt.
    `caches_states`: prefixes are cached by default where layers keep states too. A pass can write a state before its chunk's end of the kinds
    `checkpointed_states`; of Kimi K3 in 0.29 to 0.31 too, by rules that are not simulated. `aligns_mla_with_states`: latent attention beside states has longer blocks.
    `forces_chunked_prefill`: it cannot be switched off, and asking for that is ignored.
    `a100_is_large`: an A100 with 70 GiB or more has the defaults of other GPUs of that size.
    `huge_gpu_tier`: GPUs from 160 GiB on get 16,384 batched tokens in the server too.
    `subtracts_graph_memory`: the KV budget is reduced by an estimate of the CUDA graphs.
    `counts_tokens_of_requests`: the logged cache size is concurrency x max_model_len, not blocks x block size.
    `dp_sync_interval`: after so many steps of a wave data-parallel ranks look whether anybody has work left; `dp_looks_at_once`: after
    the first as well. Read off 0.25.1 and 0.32.0, the versions between are taken as the former.
    `has_local_prefill_interval`: prefill_schedule_interval holds of an engine that is no such rank too.
    """

    version: str
    cudagraph_mode: CudagraphMode
    async_scheduling: bool
    async_with_pipeline: bool
    lowers_max_num_seqs: bool
    fits_token_budget: bool
    caches_states: bool
    checkpointed_states: tuple[StateKind, ...]
    aligns_mla_with_states: bool
    forces_chunked_prefill: bool
    a100_is_large: bool
    huge_gpu_tier: bool
    subtracts_graph_memory: bool
    counts_tokens_of_requests: bool
    dp_sync_interval: int
    dp_looks_at_once: bool
    has_local_prefill_interval: bool
    capture: CaptureRules
    rules: SchedulingRules


class _Version:
    """A version, asked whether it already has what another one brought."""

    def __init__(self, text: str) -> None:
        self._numbers = parse_version(text)

    def since(self, first: str) -> bool:
        return self._numbers >= parse_version(first)

    def before(self, first: str) -> bool:
        return not self.since(first)


@cache
def release_for(vllm_version: str | None) -> Release:
    """Defaults and rules of a version, those of the newest for None; ConfigError before 0.8, which ran another engine."""
    asked = parse_version(vllm_version or NEWEST)
    if asked < (0, 8, 0):
        raise ConfigError(
            f"vllm_version must be 0.8 or newer (older ones run another engine), got {vllm_version!r}; use {OLDEST}."
        )
    v = _Version(vllm_version or NEWEST)
    return Release(
        version=next((known for known in reversed(KNOWN_VERSIONS) if v.since(known)), OLDEST),
        cudagraph_mode="FULL_AND_PIECEWISE" if v.since("0.11.0") else "PIECEWISE",
        async_scheduling=v.since("0.14.0"),
        async_with_pipeline=v.since("0.15.0"),
        lowers_max_num_seqs=v.since("0.10.1"),
        fits_token_budget=v.since("0.11.1"),
        caches_states=v.since("0.28.0"),
        checkpointed_states=_checkpointed_states(v),
        aligns_mla_with_states=v.since("0.27.0"),
        forces_chunked_prefill=v.before(SWITCHES_CHUNKED_PREFILL_SINCE),
        a100_is_large=v.before("0.9.0"),
        huge_gpu_tier=v.since("0.28.0"),
        subtracts_graph_memory=v.since("0.20.0"),
        counts_tokens_of_requests=v.since("0.20.1"),
        dp_sync_interval=16 if v.since("0.32.0") else 32,
        dp_looks_at_once=v.since("0.32.0"),
        has_local_prefill_interval=v.since("0.33.0"),
        capture=_capture_rules(v),
        rules=_scheduling_rules(v),
    )


def _checkpointed_states(v: _Version) -> tuple[StateKind, ...]:
    if v.before("0.32.0"):
        return ()
    return ("mamba2", "kimi_k3", "gated_delta_net") if v.since("0.33.0") else ("mamba2", "kimi_k3")


def _capture_rules(v: _Version) -> CaptureRules:
    gpt_oss_cap = (992 if v.since("0.11.0") and v.before("0.11.1") else 1024) if v.since("0.10.1") else None
    return CaptureRules(
        cap_follows_max_num_seqs=v.since("0.10.0"),
        wide_spacing=v.since("0.11.1"),
        adds_max_num_batched_tokens=v.since("0.20.1"),
        adds_max_num_seqs=v.since("0.31.0"),
        blackwell_cap=1024 if v.since("0.28.0") else 512,
        gpt_oss_cap=gpt_oss_cap,
        cap_counts_drafts=v.since("0.14.0"),
        rounds_to_drafts=v.since("0.12.0"),
        adds_draft_grid=v.since("0.31.0"),
    )


def _scheduling_rules(v: _Version) -> SchedulingRules:
    steps_back: ScanStep = "always" if v.since("0.28.0") else "scheduled" if v.since("0.11.1") else "never"
    return SchedulingRules(
        lone_request_ignores_threshold=v.since("0.31.0"),
        unhashed_blocks_first=v.since("0.24.0"),
        preempts_past_itself=v.since("0.33.0"),
        steps_back=steps_back,
        refunds_preempted_tokens=v.since("0.11.1"),
        asserts_batch_within_running=v.before("0.10.2"),
        stops_at_last_token=v.since("0.11.1"),
        skips_unchunked_prompts=v.before("0.12.0"),
        paces_decodes=v.since("0.23.0"),  # V2 is the default for Llama, Mistral and Qwen3 by then, for all by 0.29.0
        orders_ties_by_id=v.since("0.12.0"),
        counts_loras_of_all_running=v.since("0.33.0"),
        keeps_verified_blocks=v.since("0.33.0"),
        passes_over_short_chunks=v.since("0.33.0"),
        holders_go_first=v.since("0.31.0"),
        ranks_chunks_by_request=v.since("0.33.0"),
        touches_chunks_at_once=v.before("0.31.0"),
        offers_chunks_anew=v.since("0.33.0"),
        tells_all_connectors_of_allocations=v.since("0.33.0"),
        keeps_block_before_junction=v.since("0.33.0"),
        knows_layers_of_drafters=_known_drafters(v),
        forgets_trimmed_tokens=v.since("0.33.0"),
        stops_before_last_token=v.since("0.32.0"),
        frees_states_behind_gaps=v.since("0.30.0"),
        marks_last_state_again=v.since("0.32.0") and v.before("0.33.0"),
    )


def _known_drafters(v: _Version) -> tuple[str, ...]:
    """`is_draft` of a layer's KV cache spec (0.33), and where an MTP module's layers are taken for the last ones (0.32)."""
    if v.since("0.33.0"):
        return ("eagle", "eagle3", "mtp")
    return ("mtp",) if v.since("0.32.0") else ()


def unknown_arguments(vllm_version: str) -> dict[str, str]:
    """Arguments that this version does not know yet, with the first that does. Raises ConfigError as `parse_version`."""
    asked = parse_version(vllm_version)
    since = {name: argument.since for name, argument in ARGUMENTS.items() if argument.since}
    return {name: first for name, first in since.items() if asked < parse_version(first)}


def default_of(argument: Argument, vllm_version: str) -> Any:
    """Its default in that version where the version alone decides, else None. Raises ConfigError as `parse_version`."""
    asked = parse_version(vllm_version)
    return next((value for first, value in reversed(argument.defaults.items()) if asked >= parse_version(first)), None)
