"""What replicas share where some are lost, by worked examples: steps of one second, blocks of four tokens and 32 bytes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sim.cluster.dynamics import Dynamics
from sim.cluster.fleet_plan import FleetPlan, Pool
from sim.cluster.kv_pulls import PullOptions, PullSharing
from sim.cluster.kv_store import StoreOptions, StoreSharing
from sim.cluster.network import NetworkCosts
from sim.cluster.records import ClusterRecords
from sim.cluster.shared_records import PullRecords, StoreRecords
from sim.cluster.sharing import Sharing
from sim.cluster.simulation import simulate
from sim.engine.config import KVGroup as GroupRules
from sim.memory.kv_cache import KVGroup
from sim.memory.transfers import ReplicaKV
from sim.specs.kv_transfer import LoadFailurePolicy
from sim.units import GIB, GIGA
from tests.makers import ONE_SECOND, Ask, make_config, make_trace

KV = ReplicaKV((KVGroup("full", None, 1, 4, 32),), 1)


def served(
    asks: list[Ask], sharing: Sharing, num_replicas: int, losses: dict[int, float], **more: Any
) -> ClusterRecords:
    """Behind a router that takes turns; replicas are lost at these seconds, and are back at once unless more is said."""
    faults = [{"at_s": at_s, "replica": 0, "for_s": for_s} for at_s, for_s in losses.items()]
    changes = Dynamics.parse({"faults": faults, "recovery": {"lost": "fail"} | more})
    config = make_config(num_gpu_blocks=30, max_model_len=64)
    pool = Pool(config, ONE_SECOND, num_replicas, kv=KV)
    return simulate(make_trace(asks), FleetPlan((pool,), "round_robin", changes, sharing=sharing))


def with_a_store(asks: list[Ask], losses: list[int], num_chunks: int, bytes_per_s: int) -> ClusterRecords:
    """Of one replica, whose chunks are blocks."""
    options = StoreOptions(num_chunks * 32 / GIB, 1000 / GIGA, lookup_ms=0.0, chunk_us=0.0, chunk_tokens=4)
    return served(asks, StoreSharing(options, bytes_per_s), 1, dict.fromkeys(losses, 0.0))


def loaded(found: ClusterRecords) -> dict[int, int]:
    """Tokens that came from the store, by row."""
    stored = found.merged.stored
    assert stored is not None
    return dict(zip(stored.loaded_rows.tolist(), stored.loaded_tokens.tolist(), strict=True))


def test_what_is_stored_outlives_who_stored_it() -> None:
    """Eight tokens are computed from 0 to 1 s and stored from 1 to 3: the replica that stands there after 10 s loads them."""
    asks = [Ask("first", ((1, 8),), 2), Ask("second", ((1, 8), (2, 1)), 1, 20.0)]
    found = with_a_store(asks, [10], 8, 32)
    assert loaded(found) == {1: 8}
    assert found.merged.requests.num_cached_tokens.tolist() == [0, 8]


def test_what_is_being_stored_as_its_replica_is_lost_does_not_come() -> None:
    """And has no room any more: there are two chunks, and the next replica stores both, so that the third loads them."""
    prompts = [((1, 8),), ((1, 8), (2, 1)), ((1, 8), (3, 1))]
    asks = [Ask(str(row), prompt, 2, 20.0 * row) for row, prompt in enumerate(prompts)]
    found = with_a_store(asks, [2, 30], 2, 32)
    assert loaded(found) == {2: 8}
    assert isinstance(found.shared, StoreRecords)
    assert (found.shared.most_chunks, found.shared.num_evictions) == (2, 0)


def test_what_is_about_to_be_stored_has_no_room_either() -> None:
    """A request of one token is lost at 1 s, with the pass that has offered its chunks."""
    prompts = [((1, 8),), ((1, 8), (2, 1)), ((1, 8), (3, 1))]
    asks = [Ask(str(row), prompt, 1 + (row == 0), 20.0 * row) for row, prompt in enumerate(prompts)]
    assert loaded(with_a_store(asks, [1, 30], 2, 32)) == {2: 8}


def test_what_is_being_loaded_as_its_replica_is_lost_may_go() -> None:
    """There is one chunk, under way to the second replica from 20 to 24 s, which is lost at 22: it makes room for that of the third."""
    prompts = [((1, 4), (2, 1)), ((1, 4), (3, 1)), ((4, 4), (5, 1)), ((4, 4), (6, 1))]
    asks = [Ask(str(row), prompt, 1, 20.0 * row) for row, prompt in enumerate(prompts)]
    found = with_a_store(asks, [10, 22, 50], 1, 8)
    assert found.merged.requests.failed == {1: "replica 0 was lost"}
    assert loaded(found)[3] == 4
    assert isinstance(found.shared, StoreRecords)
    assert found.shared.num_evictions == 1


def with_pulls(losses: dict[int, float], policy: LoadFailurePolicy, **more: Any) -> ClusterRecords:
    """The first replica computes 16 tokens; the second is asked for them at 20 s, and pulls 128 bytes in 16 s."""
    asks = [
        Ask("holder", ((1, 16), (2, 1)), 1),
        Ask("other", 8, 1),
        Ask("next", 8, 1, 19.0),
        Ask("asks", ((1, 16), (3, 1)), 1, 20.0),
    ]
    sharing = PullSharing(PullOptions(1), NetworkCosts(8, 0, 0, 0), 1.0, policy)
    return served(asks, sharing, 2, losses, **more)


def test_a_pull_takes_its_time() -> None:
    """From 20 to 36 s, and a step."""
    found = with_pulls({}, "fail")
    assert isinstance(found.shared, PullRecords)
    assert found.shared.source.tolist() == [-1, -1, -1, 0]
    assert (found.shared.start_s[3], found.shared.end_s[3]) == (20, 36)
    assert found.merged.requests.finish_s[3] == pytest.approx(37, abs=0.01)  # it polls


@pytest.mark.parametrize("at_s", [20, 30])
def test_a_pull_fails_with_its_source(at_s: int) -> None:
    """Its request ends, or computes what it lacks; the second is as vLLM's kv_load_failure_policy says."""
    found = with_pulls({at_s: 100.0}, "fail")
    assert found.merged.requests.failed == {3: "its KV was lost"}
    found = with_pulls({at_s: 100.0}, "recompute")
    assert not found.merged.requests.failed
    assert found.merged.requests.finish_s[3] == pytest.approx(at_s + 1, abs=0.01)
    assert isinstance(found.shared, PullRecords)
    assert found.shared.source.tolist() == [-1] * 4


def test_a_source_that_is_lost_and_seems_to_be_there() -> None:
    """The gateway has not noticed that and names the replica, of which nothing comes."""
    found = with_pulls({18: 100.0}, "fail", probe_interval_s=100.0)
    assert found.merged.requests.failed == {2: "replica 0 was lost", 3: "its KV was lost"}


def test_what_an_attempt_pulled_before_is_told_no_more() -> None:
    """It was tried again where its prompt is."""
    asks = [Ask("holder", ((1, 16), (2, 1)), 1), Ask("asks", ((1, 16), (3, 1)), 30, 10.0)]
    sharing = PullSharing(PullOptions(1), NetworkCosts(64, 0, 0, 0), 1.0)
    changes = Dynamics.parse({"faults": [{"at_s": 30, "replica": 1, "for_s": 500}], "recovery": {"backoff_s": 0}})
    pool = Pool(make_config(num_gpu_blocks=30, max_model_len=64), ONE_SECOND, 2, kv=KV)
    found = simulate(make_trace(asks), FleetPlan((pool,), "round_robin", changes, sharing=sharing))
    assert isinstance(found.shared, PullRecords)
    assert found.replica.tolist() == [0, 0]
    assert found.shared.source.tolist() == [-1, -1]
    assert np.isnan(found.shared.start_s).all()


@pytest.mark.parametrize(("lookup", "scheduled_s"), [("sync", 20.0), ("async", 20.003)])
def test_a_lookup_holds_up_a_pass_or_a_request(lookup: str, scheduled_s: float) -> None:
    """Of 2.5 ms: the step begins so much later, or the request is asked about every millisecond, until the third."""
    options = StoreOptions(1.0, lookup=lookup, lookup_ms=2.5, chunk_us=0.0, chunk_tokens=4)
    asks = [Ask("first", 8, 1), Ask("second", 8, 1, 20.0)]
    requests = served(asks, StoreSharing(options, 1e9), 1, {}).merged.requests
    assert requests.first_scheduled_s[1] == pytest.approx(scheduled_s, abs=1e-6)
    held_up_s = 0.0025 if lookup == "sync" else 0.0
    assert requests.finish_s[1] == pytest.approx(scheduled_s + held_up_s + 1, abs=1e-6)


def test_states_behind_the_prompt_are_not_stored() -> None:
    """Every fourth token has one that stays on the GPU: of twelve the store gets three blocks and the states behind two, of an answer of twenty none."""
    groups = (GroupRules(None), GroupRules(2, keeps_states=True))
    config = make_config(num_gpu_blocks=60, max_model_len=64)
    engine = replace(config.engine, prefix_cache_retention_interval=4)
    kv = ReplicaKV((*KV.groups, KVGroup("linear", None, 1, 4, 32)), 1)
    pool = Pool(replace(config, kv_groups=groups, engine=engine), ONE_SECOND, 1, kv=kv)
    sharing = StoreSharing(StoreOptions(1.0, lookup_ms=0.0, chunk_us=0.0, chunk_tokens=4), 1e9)
    found = simulate(make_trace([Ask("asks", 12, 20)]), FleetPlan((pool,), "round_robin", sharing=sharing))
    assert found.merged.stored is not None
    assert found.merged.stored.stored_bytes == 5 * 32
