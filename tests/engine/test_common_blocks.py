"""Blocks that several decodes read, as requests come and go."""

import pytest

from sim.engine.common_blocks import CommonBlocks
from sim.engine.config import KVGroup
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
