"""Recorded cases as traces and scheduler configurations. Times are nanoseconds throughout, so that they stay exact."""

import gzip
import json
import marshal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sim.engine.config import KVGroup, SchedulerConfig
from sim.engine.content import output_id, private_prompt_id
from sim.specs.arguments import DENSELY
from sim.specs.releases import release_for
from sim.specs.rules import SchedulingRules
from sim.steptime.linear import LinearDecodeCurve
from sim.steptime.protocol import StepShape
from sim.workload.trace import Segment, Trace
from tests.configs import scheduler_config
from tests.conformance.modes import MODE_KEYS, recorded_modes, recorded_script
from tests.reference.connector import handed_over
from tests.reference.modes import PLAIN, Modes, Script

RECORDED_OUTPUTS = 1_000_000
RECORDED_PROMPTS = 2_000_000
RECORDED_VERSION = "0.32.0"
"""Of recordings that name none."""

OF_THE_VERSION = ("vllm_version", "wheel", "absent_knobs", "config", "name", "about")
"""What differs in recordings of one run by two versions; `config` lacks the knobs that a version lacks."""


@dataclass(frozen=True, slots=True)
class RecordedStepTime:
    """The recorder's step time: base + per token + per token of context, in ns."""

    base_ns: float
    per_token_ns: float
    per_ctx_ns: float

    def step_s(self, shape: StepShape) -> float:
        context = shape.decode_context_tokens + sum(tokens + computed for tokens, computed in shape.chunks)
        return self.base_ns + self.per_token_ns * shape.num_tokens + self.per_ctx_ns * context

    def decode_curve(self, num_decodes: int) -> LinearDecodeCurve:
        return LinearDecodeCurve(self.base_ns + self.per_token_ns * num_decodes, self.per_ctx_ns)


@dataclass(frozen=True)
class Case:
    """One recorded run: what went in and, step by step, what vLLM did."""

    trace: Trace
    config: SchedulerConfig
    step_time: RecordedStepTime
    max_passes: int | None
    recorded: Mapping[str, Any]
    modes: Modes = PLAIN
    scripts: Sequence[Script] = ()

    def identity(self) -> int:
        """Equal where recordings say the same of runs under the same rules, whichever version of vLLM each is of."""
        told = {name: said for name, said in self.recorded.items() if name not in OF_THE_VERSION}
        return hash((marshal.dumps(told, 2), repr(self.config), repr(self.modes)))  # many times as fast as JSON


def load_case(path: Path) -> Case:
    """Read a recorded case, gzipped or not."""
    return recorded_case(load_recording(path))


def recorded_case(data: Mapping[str, Any]) -> Case:
    """The case that a recording with a schedule tells of."""
    trace, config, step_time = load_parts(data)
    return Case(
        trace=trace,
        config=config,
        step_time=step_time,
        max_passes=data.get("max_steps"),
        recorded=data,
        modes=recorded_modes(data) if "ext" in data else PLAIN,
        scripts=[recorded_script(request) for _, request in _by_arrival(data)] if "ext" in data else (),
    )


def load_recording(path: Path) -> Mapping[str, Any]:
    """What a file holds, gzipped or not."""
    content = path.read_bytes()
    data: Mapping[str, Any] = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    return data


def load_parts(data: Mapping[str, Any]) -> tuple[Trace, SchedulerConfig, RecordedStepTime]:
    """What went into a recorded run."""
    requests = _by_arrival(data)
    rows = {number: row for row, (number, _) in enumerate(requests)}
    has_states = any(group[0] == "states" for group in data["config"].get("kv_groups") or ())
    num_left = max(data.get("derived", {}).get("num_prefill_lookahead", 0) - 1, int(has_states))
    ordered = [_as_served(request, num_left) for _, request in requests]
    trace = _trace(ordered, [number for number, _ in requests], rows, data["config"])
    config = _config(data["config"], release_for(data.get("vllm_version", RECORDED_VERSION)).rules)
    return trace, config, RecordedStepTime(*(data["time"][name] for name in ("base_ns", "per_token_ns", "per_ctx_ns")))


def _as_served(request: Mapping[str, Any], num_left: int) -> Mapping[str, Any]:
    """A prompt that is computed for others lacks its end, where they compute that themselves."""
    num_tokens = handed_over(request["prompt_len"], num_left)
    return {**request, "prompt_len": num_tokens} if request.get("remote_decode") else request


def _by_arrival(data: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    """Numbered requests in order of arrival."""
    return sorted(enumerate(data["requests"]), key=lambda pair: (pair[1]["arrival_ns"], pair[0]))


def _trace(
    requests: Sequence[Mapping[str, Any]], numbers: Sequence[int], rows: Mapping[int, int], config: Mapping[str, Any]
) -> Trace:
    unlimited = config["max_model_len"]
    return Trace(
        request_id=tuple(request["id"] for request in requests),
        arrival_s=np.array([request["arrival_ns"] for request in requests], dtype=np.float64),
        prompt_tokens=np.array([request["prompt_len"] for request in requests], dtype=np.int64),
        output_tokens=np.array([_max_tokens(request, unlimited) for request in requests], dtype=np.int64),
        priority=np.array([request.get("priority", 0) for request in requests], dtype=np.int64),
        lora_name=_adapters([request.get("lora", 0) for request in requests]),
        segments=[
            _segments(request.get("prompt") or [[RECORDED_PROMPTS + number, request["prompt_len"]]], rows)
            for number, request in zip(numbers, requests, strict=True)
        ],
    )


def _adapters(numbers: Sequence[int]) -> tuple[str, ...] | None:
    return tuple(f"lora-{number}" if number else "" for number in numbers) if any(numbers) else None


def _max_tokens(request: Mapping[str, Any], unlimited: int) -> int:
    asked = request.get("max_tokens")
    return unlimited if asked is None else int(asked)


def _segments(recorded: Sequence[Sequence[int]], rows: Mapping[int, int]) -> tuple[Segment, ...]:
    return tuple((_content_id(seed, rows), length) for seed, length in recorded)


def _content_id(seed: int, rows: Mapping[int, int]) -> int:
    if seed >= RECORDED_PROMPTS:
        return private_prompt_id(rows[seed - RECORDED_PROMPTS])
    return output_id(rows[seed - RECORDED_OUTPUTS]) if seed >= RECORDED_OUTPUTS else seed


ABSENT = {"async_scheduling": False, "scheduler_reserve_full_isl": False}
"""What a knob that its version does not have amounts to, where that is not our default."""


def _config(recorded: Mapping[str, Any], rules: SchedulingRules) -> SchedulerConfig:
    """Under the rules of its own version; knobs that are not recorded are absent from it."""
    arguments = {name: value for name, value in (ABSENT | dict(recorded)).items() if name not in MODE_KEYS}
    groups = arguments.pop("kv_groups", None) or [["full", 1]]
    interval = arguments.pop("prefix_cache_retention_interval", None)
    caches = arguments["enable_prefix_caching"]
    num_drafts = (recorded.get("spec") or {}).get("k", 0)
    drafting = recorded.get("eagle_groups", ())
    return scheduler_config(
        num_gpu_blocks=arguments.pop("num_blocks"),
        scheduling_policy=arguments.pop("policy"),
        kv_groups=tuple(
            replace(_group(group), has_drafter=number in drafting)
            for number, group in enumerate(groups)
            if caches or group[0] != "states"
        ),
        num_state_blocks=0 if caches else sum(group[0] == "states" for group in groups) * (1 + num_drafts),
        rules=rules,
        prefix_cache_retention_interval=DENSELY if interval is None else interval,
        **arguments,
    )


def _group(recorded: Sequence[Any]) -> KVGroup:
    kind, size = recorded[0], recorded[1]
    if kind == "states":
        return KVGroup(window=2, keeps_states=True, writes_checkpoints=bool(size))
    return KVGroup(None if kind == "full" else size)
