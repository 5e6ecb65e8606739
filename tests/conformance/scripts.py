"""What the world did to the requests of a recorded case, as the engine that walks asks for it."""

from dataclasses import astuple, replace
from typing import NamedTuple

from sim.engine.request import Request
from sim.engine.walking.connector import Transfer
from sim.engine.walking.modes import Modes
from sim.memory.swap_space import SwapSpace
from sim.specs.engine import batches_in_flight
from sim.specs.kv_transfer import KVTransferConfig, LoadFailurePolicy, OffloadConfig
from sim.specs.lora import LoraSlots
from sim.specs.speculating import ways_of
from sim.specs.speculation import Speculation
from sim.steptime.protocol import DecodeCurve, StepShape
from tests.conformance.case import RECORDED_VERSION, Case
from tests.reference.connector import handed_over
from tests.reference.modes import UNSCRIPTED, Pipeline, Script, Transfers
from tests.reference.modes import Speculation as Derived


class Scripts:
    """Acceptance and transfers of each request, by its row."""

    def __init__(self, case: Case) -> None:
        self._scripts = case.scripts or [UNSCRIPTED] * len(case.trace)
        self._block_size = case.config.block_size
        self._recv_token_s = case.modes.transfers.recv_token_s if case.modes.transfers else 0.0
        num_never_kept = case.modes.speculation.unfinished_tokens if case.modes.speculation else 0
        self._num_left = max(num_never_kept, case.config.num_tokens_left_to_decode)
        self._have_come: set[Request] = set()

    def _of(self, request: Request) -> Script:
        return self._scripts[request.index]

    def accepted(self, request: Request) -> bytes:
        return bytes(self._of(request).accept)

    def proposed(self, request: Request) -> bytes:
        return bytes(self._of(request).propose or ())

    def num_tokens_elsewhere(self, request: Request) -> int:
        script = self._of(request)
        if script.remote_tokens is not None:
            return script.remote_tokens // self._block_size * self._block_size
        is_there = script.is_remote and request not in self._have_come
        return handed_over(request.num_prompt_tokens, self._num_left) if is_there else 0

    def loads_in_step(self, request: Request) -> bool:
        return self._of(request).loads_in_step

    def has_all(self, request: Request) -> None: ...

    def is_sent_on(self, request: Request) -> bool:
        return self._of(request).is_sent_on

    def begin(self, transfer: Transfer) -> None:
        script = self._of(transfer.request)
        if transfer.kind == "send":
            transfer.end_s = transfer.start_s + script.send_s
            return
        self._have_come.add(transfer.request)
        transfer.end_s = transfer.start_s + script.recv_s + self._recv_token_s * transfer.num_tokens
        transfer.has_failed = script.recv_fails


class StageCurve(NamedTuple):
    """A stage's part of decodes, which no parabola goes through: it is in whole nanoseconds."""

    stages: "RecordedStages"
    stage: int
    num_decodes: int

    def at(self, context_tokens: float) -> float:
        return self.stages.stage_s(self.stage, StepShape(self.num_decodes, context_tokens, (), self.num_decodes))  # type: ignore[arg-type]


class RecordedStages:
    """Stages that take so many thousandths of a step, in whole nanoseconds; a single one takes all of it."""

    def __init__(self, case: Case) -> None:
        self._step_time = case.step_time
        self._pipeline: Pipeline = case.modes.pipeline

    def stage_s(self, stage: int, shape: StepShape) -> float:
        return self._pipeline.stages_s(self._step_time.step_s(shape))[stage]

    def step_s(self, shape: StepShape) -> float:
        return self._step_time.step_s(shape)

    def decode_curve(self, num_decodes: int) -> DecodeCurve:
        return self._step_time.decode_curve(num_decodes)

    def stage_curve(self, stage: int, num_decodes: int) -> DecodeCurve:
        return StageCurve(self, stage, num_decodes)

    def hop_s(self, stage: int, shape: StepShape) -> float:  # noqa: ARG002 - the recorder's messages are all alike
        return self._pipeline.hop_s


def walking_modes(case: Case, scripts: Scripts) -> Modes:
    """The case's modes as the product has them; what the product derives is what vLLM derived."""
    modes = case.modes
    found = Modes(
        speculation=_speculation(case, modes.speculation) if modes.speculation else None,
        acceptance=scripts,
        num_stages=modes.pipeline.num_stages,
        lora=LoraSlots(*astuple(modes.loras)) if modes.loras else None,
        kv_transfer=_kv_transfer(modes.transfers)
        if modes.transfers and modes.transfers.connector != "offload"
        else None,
        peer=scripts,
        offload=_offload(modes.transfers) if modes.transfers else None,
        idle_sleep_s=modes.idle_sleep_s,
        throttle_interval=modes.throttle_interval,
        local_prefill_interval=modes.local_prefill_interval,
        shares_fairly=case.config.engine.scheduling_policy == "fair_share",
        evicts_by=case.config.engine.prefix_cache_eviction,
        swap_space=SwapSpace(*astuple(modes.swap)) if modes.swap else None,
    )
    engine = case.config.engine
    depth = batches_in_flight(found.num_stages, is_async=engine.async_scheduling, rules=engine.rules)
    assert modes.num_batches_in_flight in (None, depth), f"{depth} batches in flight"
    return found


def _speculation(case: Case, derived: Derived) -> Speculation:
    recorded = case.recorded["config"]["spec"]
    found = Speculation(
        derived.k,
        str(recorded.get("method", "ngram")),
        parallel_drafting=bool(recorded.get("parallel")),
        mtp_layers=int(str(recorded.get("mtp_layers", 1))),
        by_batch_size=tuple(derived.by_batch_size or ()),
        **ways_of(
            case.recorded.get("vllm_version", RECORDED_VERSION),
            trusts_last_block=bool(recorded.get("disable_eagle_block_drop")),
            hashes_look_ahead=not recorded.get("disable_lookahead_block_hashes"),
        ),
    )
    beside = replace(found, hashes_look_ahead=False) if case.modes.transfers else found
    ours = (found.num_lookahead_tokens, found.num_draft_slots, found.num_prefill_lookahead)
    assert ours == (derived.lookahead, derived.draft_slots, derived.prefill_lookahead), ours
    if case.config.engine.enable_prefix_caching:
        hits = (beside.drops_last_hit, beside.num_hash_lookahead_tokens)
        assert hits == (derived.drops_last_hit, derived.hash_lookahead), hits
    return found


def _kv_transfer(transfers: Transfers) -> KVTransferConfig:
    policy: LoadFailurePolicy = "recompute" if transfers.recomputes_failed else "fail"
    return KVTransferConfig(transfers.role, policy, reports_at_start=transfers.reports_at_start)


def _offload(transfers: Transfers) -> OffloadConfig | None:
    offload = transfers.offload
    if offload is None:
        return None
    return OffloadConfig(
        offload.cpu_chunks,
        offload.load_base_s,
        offload.load_block_s,
        offload.store_base_s,
        offload.store_block_s,
        offload.blocks_per_chunk,
        offload.eviction_policy,
        offload_prompt_only=offload.prompt_only,
        reports_at_start=transfers.reports_at_start,
    )
