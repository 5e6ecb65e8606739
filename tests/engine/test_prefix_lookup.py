"""How long a prefix all KV groups have, by vLLM's rules for several kinds of layers and for drafters that read ahead."""

from collections.abc import Sequence

import pytest

from sim.engine.config import KVGroup
from sim.engine.keyed_blocks import KeyedBlocks
from sim.engine.prefix_cache import PrefixCache
from sim.engine.prefix_lookup import PrefixLookup
from sim.engine.spans import Span
from tests.makers import make_config

FULL, DRAFTED, WINDOW, STATES = (
    KVGroup(),
    KVGroup(has_drafter=True),
    KVGroup(window=5),
    KVGroup(window=2, keeps_states=True),
)
"""Of blocks of 4 tokens, of which the window needs the last one."""


def longest(groups: Sequence[KVGroup], cached: Sequence[str], num_tokens: int, *, drops: bool) -> tuple[int, int]:
    """`cached` says by group which blocks are there, block by block."""
    caches = [PrefixCache() for _ in groups]
    for cache, blocks in zip(caches, cached, strict=True):
        for block, is_there in enumerate(blocks):
            if is_there == "x":
                cache.register_free([Span(0, 100, 9)], block)
    config = make_config(block_size=4, kv_groups=tuple(groups))
    keyed = KeyedBlocks([Span(0, 100, num_tokens // 4)], [0] * len(groups))
    return PrefixLookup(config, caches, 0).longest(keyed, num_tokens, drops=drops)


@pytest.mark.parametrize(
    ("groups", "cached", "num_tokens", "found"),
    [
        ([FULL], ["xxxx"], 17, (3, 3)),
        ([FULL], ["xxxx"], 16, (2, 2)),  # one group is not asked for one block more
        ([DRAFTED, WINDOW], ["xxxx", "..x."], 17, (3, 3)),
        (
            [DRAFTED, WINDOW],
            ["xxxx", "..x."],
            16,
            (3, 3),
        ),  # all four are asked for, though one token has to be computed
        (
            [FULL, WINDOW],
            ["xxxx", "..x."],
            17,
            (0, 3),
        ),  # no drafter is known: the window is to have the fourth block too
        ([FULL, WINDOW], ["xxxx", "..xx"], 17, (3, 3)),
        ([DRAFTED, STATES], ["xxxx", ".x.."], 17, (2, 3)),
        ([FULL, STATES], ["xxxx", ".x.."], 17, (2, 3)),  # states have no drafter in any case
    ],
)
def test_a_drafter_leaves_a_block(
    groups: list[KVGroup], cached: list[str], num_tokens: int, found: tuple[int, int]
) -> None:
    """What all have, and full attention alone; the last block is left where the drafter's layers are."""
    assert longest(groups, cached, num_tokens, drops=True) == found


def test_a_shorter_prefix_is_asked_for_again() -> None:
    """Windows of 5 and of 9 tokens need one block and two: the first has block 3, the second blocks 1 and 2 alone, so that the first has to have block 2."""
    groups = [FULL, WINDOW, KVGroup(window=9)]
    assert longest(groups, ["xxxx", ".x.x", ".xx."], 17, drops=False) == (0, 4)
    assert longest(groups, ["xxxx", ".xxx", ".xx."], 17, drops=False) == (3, 4)


def test_a_block_is_left_once_for_a_length() -> None:
    """Full attention leaves block 3; the window, which has block 1 alone, leaves none, and nothing more is left behind it."""
    groups = [DRAFTED, WINDOW, STATES]
    assert longest(groups, ["xxxx", ".xx.", ".x.."], 17, drops=True) == (2, 3)
