"""`--jobs`: the same bytes from one process and from several, and one sentence for whatever goes wrong in one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import pytest

import sim
from sim.errors import ConfigError
from sim.specs.speculative_config import SpeculativeConfig
from sim.steptime.protocol import DecodeCurve, StepShape
from sim.workload.trace import Trace
from tests.test_api import TEN_MS

POOLS = {
    "router": "consistent_hash",
    "pools": [{"replicas": 2}, {"gpu": "h200-sxm", "engine": {"max_num_seqs": 8}}],
}
SPECULATING = sim.EngineConfig(speculative_config=SpeculativeConfig("ngram", None, 3))
FLEETS: dict[str, dict[str, Any]] = {
    "round_robin": {"replicas": 5, "router": "round_robin", "rate_scale": 8, "slo": ["ttft_p99=1s"]},
    "walking pools": {"fleet": POOLS, "engine": SPECULATING, "acceptance": 2.0},
}


def run(jobs: int, **given: Any) -> sim.Result:
    return sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", limit=150, jobs=jobs, seed=5, **given)


@pytest.mark.parametrize("fleet", FLEETS)
def test_any_number_of_jobs_gives_the_same_bytes(fleet: str) -> None:
    """All that a result is made of; also intervals, which are replays with other step times and rates."""
    one, several = (run(jobs, **FLEETS[fleet]) for jobs in (1, 2))
    assert _said(several) == _said(one)
    pd.testing.assert_frame_equal(several.requests, one.requests, check_exact=True)
    pd.testing.assert_frame_equal(several.steps, one.steps, check_exact=True)


def _said(result: sim.Result) -> dict[str, Any]:
    return result.summary | {"wall_time_s": None}


def test_progress_is_told_as_shares_are_done() -> None:
    told: list[tuple[int, int]] = []
    run(2, replicas=6, router="random", intervals=False, progress=lambda done, of: told.append((done, of)))
    assert told == [(75, 150), (150, 150)]


@dataclass(frozen=True)
class Failing:
    """Step times that fail in the replica that is sent a prompt so long."""

    num_tokens: int

    def step_s(self, shape: StepShape) -> float:
        if any(tokens + computed >= self.num_tokens for tokens, computed in shape.chunks):
            raise ConfigError("nothing takes so long a prompt.")
        return TEN_MS.step_s(shape)

    def decode_curve(self, num_decodes: int) -> DecodeCurve:
        return TEN_MS.decode_curve(num_decodes)


@dataclass(frozen=True)
class Unsendable(Failing):
    clock: Callable[[], float] = lambda: 0.0


def test_an_error_in_a_process_is_the_error_of_the_run() -> None:
    with pytest.raises(ConfigError, match=r"^nothing takes so long a prompt\.$"):
        run(2, replicas=4, router="round_robin", step_time_model=Failing(1000))


def test_step_times_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^what is simulated cannot be sent to other processes: .*; use one process\.$"
    ):
        run(2, replicas=4, router="round_robin", step_time_model=Unsendable(1000))


def test_jobs_are_refused_where_replicas_are_tied_to_each_other(chat: Trace) -> None:
    in_stages = replace(chat, stage=(chat.arrival_s > 5).astype(int))
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "there is one replica"),
        ({"replicas": 2}, "router least_loaded looks at them before it chooses one; choose `random`, `round_robin`, "),
        ({"replicas": 2, "router": "random", "users": 3}, "clients that wait for answers"),
        ({"replicas": 2, "router": "random", "kv_pull": ""}, "replicas that come and go, hand KV over or share it"),
        ({"replicas": 2, "router": "random", "trace": in_stages}, "clients that wait for answers"),
    ]
    for given, reason in cases:
        trace = given.pop("trace", chat)
        with pytest.raises(
            ConfigError, match=f"^jobs 2 simulates replicas apart from each other, but {reason}.*leave jobs out"
        ):
            sim.simulate("Llama-3.1-8B", "h100-sxm", trace, jobs=2, **given)
    with pytest.raises(ConfigError, match=r"^jobs must be at least 1, got 0\.$"):
        sim.simulate("Llama-3.1-8B", "h100-sxm", chat, jobs=0)


@pytest.fixture(scope="module")
def chat() -> Trace:
    return sim.read_trace("chat", limit=20)
