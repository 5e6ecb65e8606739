"""What host memory has of a prompt, group by group."""

from collections.abc import Sequence

import pytest

from sim.engine.config import KVGroup
from sim.engine.walking.chunks import Chunks, CpuCache
from sim.engine.walking.eviction import LeastRecentlyUsed
from sim.engine.walking.tier_lookup import TierLookup

FULL, STATES = KVGroup(), KVGroup(window=2, keeps_states=True)


def found(groups: Sequence[KVGroup], stored: Sequence[str], num_tokens: int, *, doubts: bool = False) -> int:
    """Tokens behind nothing on the GPU; `stored` says by group which chunks of 4 tokens are there."""
    cpu = CpuCache(99, LeastRecentlyUsed())
    keys = [[10 * group + chunk for chunk in range(num_tokens // 4)] for group in range(len(groups))]
    for group, chunks in enumerate(stored):
        there = [keys[group][chunk] for chunk, is_there in enumerate(chunks) if is_there == "x"]
        cpu.offer(there, there, Chunks().access)
        cpu.stored(there)
    return TierLookup(cpu, groups, 4, [doubts, False], caches_prefixes=True).num_found(keys, 0, num_tokens)


@pytest.mark.parametrize(
    ("stored", "num_tokens", "tokens"),
    [
        (["xxxx", "..x."], 17, 12),
        (["xxxx", "..xx"], 17, 16),
        (["xxxx", "..xx"], 16, 12),  # the last token is computed in any case, and a state stands behind whole blocks
        (["xx..", "..xx"], 17, 0),
        (["xxx.", ".x.x"], 17, 8),
    ],
)
def test_of_states_the_last_one_is_enough(stored: list[str], num_tokens: int, tokens: int) -> None:
    """All chunks of full attention before it have to be there."""
    assert found([FULL, STATES], stored, num_tokens) == tokens


@pytest.mark.parametrize(("stored", "tokens"), [(["xxxx", "xxxx"], 12), (["xxx.", "xxxx"], 8), (["x...", "xxxx"], 0)])
def test_a_drafter_leaves_a_chunk(stored: list[str], tokens: int) -> None:
    """Full attention holds its layers: of four chunks that are there three are loaded, with the state behind these."""
    assert found([FULL, STATES], stored, 17, doubts=True) == tokens


def test_one_chunk_more_is_asked_for_than_fits() -> None:
    """Of 18 tokens with 16 in whole chunks the state bounds the hit at 12, and the fourth chunk is the one that is left."""
    assert found([FULL, STATES], ["xxxx", "..x."], 18, doubts=True) == 12
