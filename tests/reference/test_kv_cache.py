"""The block tables of the naive engine, by number."""

import pytest

from sim.engine.config import KVGroup, SchedulerConfig
from sim.engine.kv_cache_manager import can_ever_fit
from tests.makers import make_config
from tests.reference.content import BlockKeys
from tests.reference.kv_cache import KVCacheManager, most_blocks
from tests.reference.request import Request


def make_request(num_tokens: int, config: SchedulerConfig, interned: dict[tuple[object, ...], int]) -> Request:
    """A request whose prompt everybody shares and whose output is its own."""
    index = len(interned)
    keys = BlockKeys(((7, 0, num_tokens), (-2 * index - 2, 0, 100)), config.block_size, interned)
    return Request(index, str(index), 0.0, num_tokens, 100, keys)


def compute(kv: KVCacheManager, request: Request, num_tokens: int) -> None:
    """What a step does to a request that gets `num_tokens` and, once its prompt is through, an output token."""
    hit = None if request.block_tables else kv.find_prefix(request)
    assert kv.allocate_slots(request, num_tokens, hit=hit) is not None
    request.num_computed_tokens += num_tokens + (hit.num_tokens if hit else 0)
    request.num_output_tokens += request.num_computed_tokens == request.num_tokens


def test_requests_take_blocks_in_turn() -> None:
    """Statement 1: A5 takes [1, 2]; B takes [3] for 3 tokens and then 4; C4 takes [5] and then 6."""
    config = make_config(enable_prefix_caching=False)
    kv = KVCacheManager(config)
    a, b, c = (make_request(tokens, config, {}) for tokens in (5, 6, 4))
    for request, tokens in ((a, 5), (b, 3), (a, 1), (b, 3), (c, 4), (a, 1), (b, 1), (c, 1)):
        compute(kv, request, tokens)
    assert [request.block_tables for request in (a, b, c)] == [[[1, 2]], [[3, 4]], [[5, 6]]]


def test_a_window_nulls_the_blocks_it_has_passed() -> None:
    """Statement 36: window 8 after 16 tokens has passed 9 and drops 2 blocks, whose ids are reused tail first."""
    config = make_config(enable_prefix_caching=False, kv_groups=(KVGroup(window=8),))
    kv, request = KVCacheManager(config), make_request(16, config, {})
    tables = []
    for tokens in (16, 1, 1, 1, 1, 1):
        compute(kv, request, tokens)
        tables.append(list(request.block_tables[0]))
    assert tables[:2] == [[1, 2, 3, 4], [0, 0, 3, 4, 2]]
    assert tables[4:] == [[0, 0, 0, 4, 2], [0, 0, 0, 4, 2, 3]]


def test_a_hit_in_two_groups_is_null_where_the_window_has_passed() -> None:
    """Statement 37: 20 cached and 2 new tokens: the window's table is 3 nulls, 2 cached blocks and a new one."""
    config = make_config(kv_groups=(KVGroup(), KVGroup(window=8)))
    interned: dict[tuple[object, ...], int] = {}
    kv, first = KVCacheManager(config), make_request(20, config, interned)
    compute(kv, first, 20)
    compute(kv, first, 1)
    assert first.block_tables == [[1, 2, 3, 4, 5, 11], [0, 0, 0, 9, 10, 12]]
    second = make_request(22, config, interned)
    compute(kv, second, 2)
    assert [table[:5] for table in second.block_tables] == [[1, 2, 3, 4, 5], [0, 0, 0, 9, 10]]
    assert second.num_computed_tokens == 22


@pytest.mark.parametrize(
    ("window", "in_flight", "async_scheduling", "blocks"),
    [(None, 64, False, 25), (8, 4, False, 4), (8, 4, True, 5), (8, 64, False, 19), (8, 200, False, 25)],
)
def test_the_gate_counts_what_a_window_can_hold_at_once(
    window: int | None, in_flight: int, async_scheduling: bool, blocks: int
) -> None:
    """100 tokens in blocks of 4: a window of 8 holds at most ceil((7 + tokens in flight) / 4) + 1 blocks."""
    config = make_config(max_num_batched_tokens=in_flight, async_scheduling=async_scheduling)
    assert most_blocks(KVGroup(window), 100, config) == blocks


def test_groups_share_one_pool() -> None:
    """Two full groups need twice the blocks: 8 tokens fit into 4 usable blocks, 9 do not."""
    config = make_config(num_gpu_blocks=5, kv_groups=(KVGroup(), KVGroup()))
    assert [can_ever_fit(tokens, config) for tokens in (8, 9)] == [True, False]
