"""The further modes of recorded cases (`golden/RULES_SCALING.md`, section 1): what is configured, and each request's script."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tests.reference.modes import Loras, Modes, Offload, Pipeline, Script, Speculation, Transfers

Fields = Mapping[str, Any]

MODE_KEYS = frozenset(
    {
        "spec",
        "eagle_groups",
        "pp",
        "runner",
        "max_loras",
        "kv",
        "idle_sleep_ns",
        "throttle",
        "prefill_schedule_interval",
        "max_num_queued_reqs",
        "max_num_queued_tokens",
    }
)


def recorded_modes(data: Fields) -> Modes:
    """What the case configures, with the values that vLLM derived from it."""
    config, derived = data["config"], data.get("derived", {})
    return Modes(
        num_batches_in_flight=derived.get("queue_depth"),
        speculation=_speculation(derived) if "spec" in config else None,
        pipeline=_pipeline(config.get("pp", 1), data["time"]),
        loras=Loras(config["max_loras"], config["max_loras"]) if config.get("max_loras") else None,
        transfers=_transfers(config["kv"]) if "kv" in config else None,
        idle_sleep_s=config.get("idle_sleep_ns", 0),
        throttle_interval=config.get("throttle", {}).get("interval", 0),
        local_prefill_interval=config.get("prefill_schedule_interval", 1),
        max_num_queued_reqs=config.get("max_num_queued_reqs"),
        max_num_queued_tokens=config.get("max_num_queued_tokens"),
    )


def _speculation(derived: Fields) -> Speculation:
    return Speculation(
        k=derived["num_spec_tokens"],
        lookahead=derived["num_lookahead_tokens"],
        draft_slots=derived["draft_slots"],
        drops_last_hit=derived["eagle_block_drop"],
        prefill_lookahead=derived["num_prefill_lookahead"],
        hash_lookahead=derived.get("num_hash_lookahead_tokens", 0),
        by_batch_size=derived.get("dynamic_lookup"),
    )


def _pipeline(num_stages: int, time: Fields) -> Pipeline:
    if num_stages == 1:
        return Pipeline()
    multipliers = time.get("stage_mul") or [1000] * num_stages
    return Pipeline(num_stages, partial(stages_ns, multipliers), time.get("hop_ns", 0))


def stages_ns(multipliers: Sequence[int], step_ns: float) -> Sequence[float]:
    """Whole nanoseconds, multipliers being thousandths."""
    return [step_ns * multiplier // 1000 for multiplier in multipliers]


def _transfers(kv: Fields) -> Transfers:
    return Transfers(
        connector=kv["connector"],
        role=kv["role"],
        reports_at_start=kv.get("report") == "start",
        recv_token_s=kv.get("recv_per_token_ns", 0),
        recomputes_failed=kv.get("load_failure") == "recompute",
        offload=_offload(kv) if "cpu_chunks" in kv else None,
    )


def _offload(kv: Fields) -> Offload:
    return Offload(
        cpu_chunks=kv["cpu_chunks"],
        load_base_s=kv["load_base_ns"],
        load_block_s=kv["load_block_ns"],
        store_base_s=kv["store_base_ns"],
        store_block_s=kv["store_block_ns"],
        blocks_per_chunk=kv.get("blocks_per_chunk", 1),
        prompt_only=kv.get("extra", {}).get("offload_prompt_only", True),
        eviction_policy=kv.get("eviction_policy", "lru"),
    )


def recorded_script(request: Fields) -> Script:
    """What the world did to one request."""
    return Script(
        accept=tuple(request.get("accept") or (0,)),
        propose=tuple(request["propose"]) if request.get("propose") else None,
        is_remote=request.get("remote", False),
        recv_s=request.get("recv_ns", 0),
        recv_fails=request.get("recv_fail", False),
        is_sent_on=request.get("remote_decode", False),
        send_s=request.get("send_ns", 0),
        remote_tokens=request.get("remote_tokens"),
        loads_in_step=request.get("sync_load", False),
    )
