"""Pools that hand KV over and share a store do what naive ones do: who prefills loads from it and stores there, who decodes loads, and stores no prefill."""

from dataclasses import replace
from unittest.mock import patch

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.kv_store import StoreOptions, StoreSharing
from sim.cluster.network import NetworkCosts
from sim.cluster.shared_records import StoreRecords
from sim.engine.walking import vain_calls
from sim.errors import ConfigError
from sim.memory.kv_cache import KVGroup
from sim.memory.transfers import ReplicaKV
from tests.cluster.drafts import naive_scripts, naive_speculation
from tests.cluster.sharing import Workload, workloads
from tests.cluster.test_disaggregation_agrees import POLLING_S, Fleet, assert_same_handovers, costs, simulate
from tests.cluster.test_store_agrees import BYTES_PER_TOKEN, options_for, revisited, stores
from tests.cluster.tiers import tiers
from tests.engine.test_engines_agree import Telling
from tests.properties import engine_examples as examples
from tests.reference.cluster import cpu_of
from tests.reference.disaggregation import Disaggregated, Pool, simulate_disaggregated
from tests.workloads import step_times

routers = st.sampled_from(("round_robin", "least_loaded", "random", "power_of_two"))


@st.composite
def storing_fleets(draw: st.DrawFn, given: Workload) -> Fleet:
    """Both pools schedule alike, each at a speed of its own."""
    trace, config, drafts = given
    kv = ReplicaKV((KVGroup("full", None, 1, config.block_size, BYTES_PER_TOKEN),), draw(st.integers(1, 2)))
    modes = (naive_speculation(drafts), naive_scripts(drafts, trace))
    has_tiers = config.block_size > 1  # where a prompt is one block, vLLM loads it again and again
    cpus = [draw(st.none() | st.none() | tiers) if has_tiers else None for _ in range(2)]
    prefill, decode = (
        replace(
            Pool(config, Telling(draw(step_times)), kv, draw(st.integers(1, 3)), draw(routers), *modes),
            offload=cpu_of(cpu) if cpu else None,
        )
        for cpu in cpus
    )
    return Fleet(trace, prefill, decode, drafts, tiers=(cpus[0], cpus[1]))


@examples(120)
@given(
    data=st.data(),
    workload=workloads(with_windows=True) | revisited(),
    store=stores(),
    network=costs,
    least_uncached_tokens=st.sampled_from((1, 1, 6, 12)),
)
def test_requests_of_a_trace(
    data: st.DataObject,
    workload: Workload,
    store: tuple[int, StoreOptions],
    network: NetworkCosts,
    least_uncached_tokens: int,
) -> None:
    """Who prefilled and who answered, every request's times, every pull's times and bytes."""
    fleet = data.draw(storing_fleets(workload))
    sharing = StoreSharing(options_for(workload.config, store), network.bytes_per_s)

    def naive() -> Disaggregated:
        given = {"least_uncached_tokens": least_uncached_tokens, "idle_sleep_s": POLLING_S}
        return simulate_disaggregated(*fleet[:3], network, **given, sharing=sharing)  # type: ignore[arg-type]

    try:
        with patch.object(vain_calls, "MOST_VAIN_LOADS", 100):
            found = simulate(fleet, network, least_uncached_tokens, sharing=sharing)
    except ConfigError:
        with pytest.raises(ConfigError, match="came to nothing"):
            naive()
        return
    expected = naive()
    assert_same_handovers(found, expected, fleet.prefill.num_engines)
    assert isinstance(found.shared, StoreRecords)
    loads = {name: getattr(found.merged, name) for name in ("offload", "stored")}
    hypothesis.event(str({name: of is not None and len(of.loaded_rows) > 0 for name, of in loads.items()}))
