"""Replicas that share a store of KV do what naive ones do."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from sim.cluster.fleet_plan import FleetPlan, Pool
from sim.cluster.kv_store import StoreOptions, StoreSharing
from sim.cluster.shared_records import StoreRecords
from sim.engine.config import SchedulerConfig
from sim.engine.walking import vain_calls
from sim.errors import ConfigError
from sim.memory.kv_cache import KVGroup
from sim.memory.transfers import ReplicaKV
from sim.specs.kv_transfer import OffloadConfig
from sim.units import GIB, GIGA
from sim.workload.trace import Trace
from tests.cluster.drafts import modes_of, naive_scripts, naive_speculation
from tests.cluster.sharing import POLLING_S, ROUTERS, Workload, served, workloads
from tests.cluster.test_clusters_agree import assert_same_run
from tests.cluster.test_parallel_sampling import assert_same_answers, with_n
from tests.cluster.test_ranks_beside import revisits
from tests.cluster.tiers import tiers
from tests.configs import scheduler_config
from tests.conformance.case import RecordedStepTime
from tests.engine.test_engines_agree import Telling
from tests.properties import engine_examples as examples
from tests.reference.cluster import Served, cpu_of
from tests.reference.kv_store import simulate_store
from tests.workloads import step_times

BYTES_PER_TOKEN = 8
CARD_BYTES_PER_S = 20.0


@st.composite
def stores(draw: st.DrawFn) -> tuple[int, StoreOptions]:
    """Blocks a chunk, and a store of few chunks of tokens that take one byte; its options for blocks of one token."""
    bytes_per_s = draw(st.integers(1, 40))
    options = StoreOptions(
        capacity_gib=draw(st.integers(4 * 2 * BYTES_PER_TOKEN, 800)) / GIB,
        bandwidth_gb_s=bytes_per_s / GIGA,
        lookup=draw(st.sampled_from(("sync", "async"))),
        lookup_ms=1000.0 * draw(st.sampled_from((0, 0, 1, 5))),
        chunk_us=1e6 * draw(st.integers(0, 3)),
        min_retrieve_tokens=draw(st.sampled_from((0, 0, 9))),
        save_decode_cache=draw(st.booleans()),
    )
    return draw(st.integers(1, 2)), options


def most_blocks(config: SchedulerConfig, chunk_blocks: int) -> int:
    """Of several KV groups a chunk is a block."""
    return chunk_blocks if len(config.kv_groups) == 1 and not config.has_windows else 1


def options_for(config: SchedulerConfig, store: tuple[int, StoreOptions]) -> StoreOptions:
    """Chunks of blocks, and of full attention alone what is answered as well, if that is drawn."""
    chunk_blocks, options = store
    chunk_tokens = most_blocks(config, chunk_blocks) * config.block_size
    has_attention_alone = len(config.kv_groups) == 1 and not config.has_windows
    saves = options.save_decode_cache and has_attention_alone
    return replace(options, chunk_tokens=chunk_tokens, save_decode_cache=saves)


@st.composite
def revisited(draw: st.DrawFn) -> Workload:
    """Prompts that begin alike, which come when others have been stored."""
    trace, config = draw(revisits(with_windows=True))
    assume(config.engine.enable_prefix_caching)
    return Workload(replace(trace, arrival_s=trace.arrival_s * draw(st.sampled_from((1, 20)))), config, None)


@examples(120)
@given(
    data=st.data(),
    workload=workloads(with_windows=True) | revisited(),
    store=stores(),
    step_time=step_times,
    num_replicas=st.integers(1, 3),
    router=st.sampled_from(ROUTERS),
)
def test_replicas_that_share_a_store(
    data: st.DataObject,
    workload: Workload,
    store: tuple[int, StoreOptions],
    step_time: RecordedStepTime,
    num_replicas: int,
    router: str,
) -> None:
    """The same steps and times, of requests for one answer or several, or no end."""
    is_one_server = router.startswith(
        "vllm_dp"
    )  # whose balancer sends answers one by one, and the naive one whole requests
    if not (workload.drafts or is_one_server) and data.draw(st.booleans()):
        alone = replace(
            workload.trace, segments=None
        )  # whose prompts repeat no answer, of which there would be several
        workload = workload._replace(trace=with_n(alone, data))
    assert_same_loads(workload, store, step_time, num_replicas, router)


@examples(120)
@given(
    workload=revisited(),
    store=stores(),
    step_time=step_times,
    num_replicas=st.integers(1, 3),
    router=st.sampled_from(ROUTERS),
    tier=tiers,
)
def test_replicas_with_a_cpu_tier_each_that_share_a_store(
    workload: Workload,
    store: tuple[int, StoreOptions],
    step_time: RecordedStepTime,
    num_replicas: int,
    router: str,
    tier: OffloadConfig,
) -> None:
    """A prompt is loaded from the tier where that has some of it, and else from the store."""
    assume(workload.config.block_size > 1)  # where a prompt is one block, vLLM loads it again and again
    assert_same_loads(workload, store, step_time, num_replicas, router, tier)


def assert_same_loads(
    workload: Workload,
    store: tuple[int, StoreOptions],
    step_time: RecordedStepTime,
    num_replicas: int,
    router: str,
    tier: OffloadConfig | None = None,
) -> None:
    trace, config, given = workload
    options = options_for(config, store)
    kv = ReplicaKV((KVGroup("full", None, 1, config.block_size, BYTES_PER_TOKEN * config.block_size // 2),), 1)
    timed, sharing = Telling(step_time), StoreSharing(options, CARD_BYTES_PER_S)

    def naive() -> Served:
        return simulate_store(
            trace,
            config,
            timed,
            sharing,
            kv,
            num_replicas=num_replicas,
            router=router,
            idle_sleep_s=POLLING_S,
            speculation=naive_speculation(given),
            scripts=naive_scripts(given, trace),
            offload=cpu_of(tier) if tier else None,
        )

    modes = replace(modes_of(given), offload=tier)
    plan = FleetPlan((Pool(config, timed, num_replicas, kv=kv, modes=modes),), router, sharing=sharing)
    try:
        with patch.object(vain_calls, "MOST_VAIN_LOADS", 100):
            found = served(trace, plan)
    except ConfigError:
        with pytest.raises(ConfigError, match="came to nothing"):
            naive()
        return
    if len(trace.more_answers):
        assert_same_answers(found, naive(), trace)
    else:
        assert_same_run(found, naive())
    records, shared = found.merged, found.shared
    assert records.stored is not None
    assert np.all(records.stored.loaded_tokens > 0)
    from_tier = records.offload is not None and len(records.offload.loaded_rows) > 0
    event(f"from the store: {len(records.stored.loaded_rows) > 0}, from the tier: {from_tier}")
    assert isinstance(shared, StoreRecords)
    assert shared.most_chunks <= shared.num_chunks


def test_a_lookup_begins_in_a_pass_that_comes_to_the_request() -> None:
    """One in which somebody is preempted does not, though the request could have been asked about beforehand."""
    trace = Trace(
        tuple("abcde"),
        np.arange(5) / 1024,
        np.ones(5, dtype=np.int64),
        np.array([3, 1, 1, 1, 1]),
        n=np.array([5, 1, 1, 1, 1]),
    )
    config = scheduler_config(
        async_scheduling=False,
        block_size=1,
        max_model_len=5,
        num_gpu_blocks=8,
        max_num_seqs=4,
        max_num_batched_tokens=16,
    )
    options = StoreOptions(64 / GIB, 1 / GIGA, lookup="async", lookup_ms=1000.0, chunk_us=0.0, chunk_tokens=2)
    kv, timed = ReplicaKV((KVGroup("full", None, 1, 1, 4),), 1), Telling(RecordedStepTime(1, 0, 0))
    sharing = StoreSharing(options, CARD_BYTES_PER_S)
    found = served(trace, FleetPlan((Pool(config, timed, 1, kv=kv),), "round_robin", sharing=sharing))
    how = {"num_replicas": 1, "router": "round_robin", "idle_sleep_s": POLLING_S}
    assert_same_answers(found, simulate_store(trace, config, timed, sharing, kv, **how), trace)  # type: ignore[arg-type]
