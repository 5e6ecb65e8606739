"""Blocks that several decodes read, as requests come and go."""

import pytest

from sim.engine.common_blocks import CommonBlocks
from sim.engine.common_readers import CommonReaders
from sim.engine.config import KVGroup
from sim.engine.decodes import Decodes
from sim.engine.keyed_blocks import KeyedBlocks
from sim.engine.prefix_cache import PrefixCache
from sim.engine.request import Request
from sim.engine.spans import Span
from sim.steptime.common_reads import CommonReads
from tests.engines import ENGINES
from tests.makers import ONE_SECOND, Ask, make_config, make_trace, replay

AT_ONCE = CommonReads(num_at_once=100.0, most=1.0, in_step=1.0)  # whatever is in common is read once


def context_tokens(engine: str, asks: list[Ask], **arguments: object) -> list[tuple[int, int]]:
    """Of each step, how many decode and what of their contexts is read."""
    config = make_config(num_gpu_blocks=60, block_size=4, common_reads=AT_ONCE, **arguments)
    steps = replay(ENGINES[engine], make_trace(asks), config, ONE_SECOND).records.steps
    return list(zip(steps.num_decodes.tolist(), steps.decode_context_tokens.tolist(), strict=True))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_in_common_is_read_once_while_both_decode(engine: str) -> None:
    """B finds A's first two blocks. It decodes from the third step on beside A, at 11 and 10 tokens, of which 8 are in common; A ends first."""
    asks = [Ask("A", ((0, 8), (1, 1)), 4), Ask("B", ((0, 8), (2, 1)), 4, at=1)]
    assert context_tokens(engine, asks, async_scheduling=False) == [
        (0, 0),
        (2, 10 + 9 - 8),
        (2, 11 + 10 - 8),
        (2, 12 + 11 - 8),
        (1, 12),
    ]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"enable_prefix_caching": False}, id="no prefix is cached"),
        pytest.param({"kv_groups": (KVGroup(window=4),)}, id="a window has passed it"),
    ],
)
def test_nothing_is_in_common(engine: str, arguments: dict[str, object]) -> None:
    asks = [Ask("A", ((0, 8), (1, 1)), 4), Ask("B", ((0, 8), (2, 1)), 4)]
    assert context_tokens(engine, asks, async_scheduling=False, **arguments)[1:] == [(2, 20), (2, 22), (2, 24)]


def test_copies_are_counted_from_the_second_reader_to_the_last_but_one() -> None:
    common = CommonBlocks(AT_ONCE, block_size=4)
    first, second = object(), object()
    seen = []
    for act, copies, count in (
        (common.add, first, 5),
        (common.add, first, 5),
        (common.add, first, 5),
        (common.add, second, 2),
        (common.add, second, 2),
        (common.remove, first, 5),
        (common.remove, first, 5),
        (common.remove, second, 2),
    ):
        act(copies, count)
        seen.append((common.num_blocks, common.num_reads, common.num_spared(3)))
    assert seen == [(0, 0, 0), (5, 10, 20), (5, 15, 40), (5, 15, 40), (7, 19, 48), (7, 14, 28), (2, 4, 8), (0, 0, 0)]


def sharing(*names: str) -> list[Request]:
    """Requests that hold the same two blocks of four tokens and decode from pass 1 on, the 9th token."""
    cache, requests = PrefixCache(), []
    for name in names:
        request = Request(0, name, 0.0, 8, 5)
        request.keyed = keyed = KeyedBlocks([Span(0, 7, 2)], [0])
        request.epoch, request.last_pass = -8, 4
        for piece in cache.match(keyed.spans, 0, 2):
            keyed.held[0].put_behind(piece.extent)
        cache.register(keyed.spans, keyed.held[0], 2)
        requests.append(request)
    return requests


def decodes_of_a_gpu() -> Decodes:
    return Decodes(4, CommonReaders(CommonBlocks(AT_ONCE, block_size=4), 0))


def beside(decodes: Decodes, others: list[Request]) -> int:
    """The sum of contexts after pass 1 with these others."""
    keyed = [request.keyed for request in others if request.keyed is not None]
    return decodes.context_sum_beside(keyed, decodes.count + len(others), 1)


def test_a_sum_without_some_is_that_once_they_have_left() -> None:
    """Three read 8 of 9 tokens in common, then two of them, then one by itself; nobody has left before."""
    decodes, requests = decodes_of_a_gpu(), sharing("A", "B", "C")
    for request in requests:
        decodes.enter(request)
    sums = [decodes.context_sum_without(1, requests[:count]) for count in (0, 1, 2, 3)]
    assert sums == [27 - 16, 18 - 8, 9, 0]
    assert decodes.context_sum(1) == sums[0]
    for left, expected in zip(requests, sums[1:], strict=True):
        decodes.leave(left)
        assert decodes.context_sum(1) == expected


def test_those_beside_read_while_they_are_there() -> None:
    """A is counted; B and C read beside it in one pass, C alone in the next, nobody behind that. Contexts of others do not count."""
    decodes, (first, second, third) = decodes_of_a_gpu(), sharing("A", "B", "C")
    decodes.enter(first)
    assert [beside(decodes, others) for others in ([second, third], [third], [third], [])] == [
        9 - 16,
        9 - 8,
        9 - 8,
        9,
    ]


def test_those_beside_one_slot_may_be_beside_another_in_the_next_pass() -> None:
    one, other = decodes_of_a_gpu(), decodes_of_a_gpu()
    requests = sharing("A", "B")
    assert [beside(one, requests), beside(other, requests), beside(one, requests)] == [-8, -8, -8]
    assert [beside(one, requests[:1]), beside(other, requests[1:])] == [0, 0]


def test_who_is_counted_may_have_been_beside() -> None:
    decodes, requests = decodes_of_a_gpu(), sharing("A", "B")
    assert beside(decodes, requests) == -8
    for request in requests:
        decodes.enter(request)
    assert [decodes.context_sum(1), decodes.context_sum(1)] == [18 - 8, 18 - 8]


def test_counters_of_nobody_know_of_no_readers() -> None:
    decodes, requests = decodes_of_a_gpu(), sharing("A", "B", "C")
    for request in requests:
        decodes.enter(request)
    fresh = decodes.without_any(requests)
    fresh.enter(requests[0])
    assert (decodes.count, fresh.count, fresh.context_sum(1)) == (3, 1, 9)
