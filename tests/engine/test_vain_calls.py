"""An engine that polls never does so without end: what vLLM would do for ever is told instead, and waiting costs nothing."""

import math
from dataclasses import replace
from typing import Any

import pytest

from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.engine.records import RequestRecords
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable
from sim.engine.walking import vain_calls
from sim.engine.walking.core import WalkingCore
from sim.engine.walking.modes import Modes
from sim.engine.walking.recorder import WalkRecorder
from sim.errors import ConfigError
from sim.specs.kv_transfer import OffloadConfig
from sim.workload.trace import Trace
from tests.configs import scheduler_config
from tests.makers import ONE_SECOND, Ask, make_trace

TIER = OffloadConfig(
    cpu_chunks=8,
    load_base_s=1.0,
    load_block_s=0.0,
    store_base_s=0.0,
    store_block_s=0.0,
    reports_at_start=True,
    block_bytes=10,
)


def tiered(tier: OffloadConfig, polling_s: float = 0.001) -> Modes:
    return Modes(offload=tier, idle_sleep_s=polling_s)


def test_a_prompt_that_is_loaded_for_ever_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """One token in a block of one: all of it comes from the CPU, none counts as computed, and it is asked for again."""
    monkeypatch.setattr(vain_calls, "MOST_VAIN_LOADS", 5)
    trace = replace(make_trace([Ask("A", 1, 2), Ask("B", 1, 2, at=30)]), segments=[((0, 1),), ((0, 1),)])
    config = scheduler_config(block_size=1)
    with pytest.raises(ConfigError, match=r"again and again: 5 times without a token .* give a greater block_size\.$"):
        simulate(trace, FleetPlan.alike(config, ONE_SECOND, modes=tiered(TIER)))


def test_a_greater_block_lets_it_pass() -> None:
    """The same prompts are never loaded."""
    trace = replace(make_trace([Ask("A", 1, 2), Ask("B", 1, 2, at=30)]), segments=[((0, 1),), ((0, 1),)])
    records = simulate(trace, FleetPlan.alike(scheduler_config(block_size=2), ONE_SECOND, modes=tiered(TIER)))
    assert records.merged.requests.generated_tokens.tolist() == [2, 2]


def walk(trace: Trace, modes: Modes, **limits: Any) -> tuple[WalkingCore, RequestRecords]:
    """Serve requests by an engine with a CPU tier, whether they fit or not."""
    config = scheduler_config(block_size=1, async_scheduling=False, **limits)
    source = RequestSource(trace, config, capacity_too=False)
    table = RequestTable(source)
    core = WalkingCore(config, ONE_SECOND, WalkRecorder(table), start_s=0.0, modes=modes, num_keys=source.num_keys())
    for request in source:
        core.advance(request.arrival_s)
        core.add_request(request)
    core.advance(math.inf)
    return core, table.records()


def test_a_request_that_can_never_get_its_blocks_is_an_error() -> None:
    """Nothing runs, nothing is under way, and what is free is too little."""
    with pytest.raises(ConfigError, match=r"wait for ever: at 0\.001 s .* more than the 3 free KV blocks; give more"):
        walk(make_trace([Ask("A", 8, 1)]), tiered(TIER), num_gpu_blocks=4)


@pytest.mark.parametrize(("polling_s", "b_ends_s"), [(0.001, 131.001), (1.0, 132.0), (4.0, 135.0), (3.0, 136.0)])
def test_polls_that_change_nothing_are_passed_over(polling_s: float, b_ends_s: float) -> None:
    """B's prefix is under way from 30 to 130 s: the first poll from then on hears of it, and B's second begins with the next."""
    asks = [Ask("A", 5, 1), Ask("C", 10, 1, at=20), Ask("B", 5, 1, at=30)]
    trace = replace(make_trace(asks), segments=[((0, 5),), ((1, 10),), ((0, 5),)])
    tier = replace(TIER, load_base_s=100.0, cpu_chunks=20)
    core, requests = walk(trace, tiered(tier, polling_s), num_gpu_blocks=11)
    loaded = core.records().offload
    assert loaded is not None
    assert loaded.loaded_tokens.tolist() == [5]
    assert requests.finish_s.tolist() == pytest.approx([1.0, 21.0, b_ends_s])
    assert core.state.num_calls < 20
