"""Keys of blocks in the naive engine: equal exactly where all tokens up to the block's end are equal."""

from hypothesis import given
from hypothesis import strategies as st

from sim.engine.content import output_id, private_prompt_id
from sim.workload.trace import Segment
from tests.reference.content import BlockKeys, pieces

prompts = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=5)


def spell(segments: list[Segment]) -> list[tuple[int, int]]:
    """Token by token, what segments stand for."""
    return [(content_id, k) for content_id, tokens in segments for k in range(tokens)]


@given(prompts, prompts, st.integers(1, 4))
def test_keys_are_equal_exactly_where_prefixes_are(one: list[Segment], other: list[Segment], block_size: int) -> None:
    """However segments are cut, block i of two prompts has one key if and only if their tokens agree up to its end."""
    interned: dict[tuple[object, ...], int] = {}
    tokens = [spell(one), spell(other)]
    blocks = min(map(len, tokens)) // block_size
    keys = [BlockKeys(pieces(prompt), block_size, interned).upto(blocks) for prompt in (one, other)]
    for block in range(blocks):
        end = (block + 1) * block_size
        assert (keys[0][block] == keys[1][block]) == (tokens[0][:end] == tokens[1][:end])


def test_private_contents_are_nobody_elses() -> None:
    """Prompts and outputs of all requests have ids of their own, below those of a trace."""
    ids = [make(index) for make in (private_prompt_id, output_id) for index in range(100)]
    assert len(set(ids)) == 200
    assert max(ids) < 0
