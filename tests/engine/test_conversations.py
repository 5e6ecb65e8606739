"""A turn's prompt begins with the turn before it and its answer, and vLLM finds both in its cache."""

import time
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine import leaps
from sim.engine.content import shared_block_keys
from sim.workload.trace import Segment, Trace
from tests.conformance.case import RecordedStepTime
from tests.engine.test_content import written_out
from tests.engine.test_engines_agree import OTHERS, assert_agreement
from tests.engines import Engine
from tests.makers import ONE_SECOND, make_config
from tests.properties import engine_examples as examples
from tests.reference.front_door import make_requests
from tests.workloads import configs, conversations, step_times

FAR_APART_S = 10_000.0
Turn = tuple[str, int, int]
"""Session, prompt tokens, output tokens."""


def talk(turns: Sequence[Turn], segments: Sequence[tuple[Segment, ...]] | None = None) -> Trace:
    """Each turn long after the one before it."""
    sessions, prompts, outputs = zip(*turns, strict=True)
    return Trace(
        request_id=tuple(f"r{row}" for row in range(len(turns))),
        arrival_s=np.arange(len(turns), dtype=np.float64) * FAR_APART_S,
        prompt_tokens=np.array(prompts),
        output_tokens=np.array(outputs),
        session_id=sessions,
        segments=segments,
    )


def cached(engine: Engine, trace: Trace, **arguments: int) -> list[int]:
    """Prompt tokens of each turn that the cache had."""
    config = make_config(block_size=16, max_num_batched_tokens=512, **arguments)
    found: list[int] = engine(trace, config, ONE_SECOND).requests.num_cached_tokens.tolist()
    return found


def test_answers_are_cached_but_for_the_last_token(engine: Engine) -> None:
    """319 tokens are computed in turn 1, the last sampled one is not: 19 full blocks of 16 are 304."""
    assert cached(engine, talk([("s", 160, 160), ("s", 480, 160)])) == [0, 304]


def test_other_sessions_share_nothing(engine: Engine) -> None:
    assert cached(engine, talk([("s", 160, 160), ("t", 480, 160), ("s", 480, 1)])) == [0, 0, 304]


def test_an_answer_is_as_long_as_the_context_allows(engine: Engine) -> None:
    """max_model_len 200 ends the answer after 40 tokens: 199 computed, 12 blocks, of which 186 tokens of prompt can ask 11."""
    assert cached(engine, talk([("s", 160, 160), ("s", 186, 5)]), max_model_len=200) == [0, 176]


def test_a_rejected_turn_has_no_answer(engine: Engine) -> None:
    """Its prompt was never computed; what the turns around it share is still found."""
    turns = [("s", 160, 161), ("s", 1200, 160), ("s", 400, 5)]
    assert cached(engine, talk(turns)) == [0, 0, 320]


def test_a_prompt_shorter_than_the_conversation_is_the_beginning_of_it(engine: Engine) -> None:
    """Turn 2 repeats 200 tokens and gets an answer of its own; turn 3 goes on from turn 2, not from turn 1."""
    turns = [("s", 160, 161), ("s", 200, 57), ("s", 300, 5)]
    assert cached(engine, talk(turns)) == [0, 192, 256]


def test_hash_ids_win_and_answers_are_what_the_next_prompt_has(engine: Engine) -> None:
    """Turn 2 goes on behind turn 1's ids: it has its answer; a stranger with the same ids finds it as well."""
    segments = [((1, 160),), ((1, 160), (2, 320)), ((1, 160), (2, 160))]
    turns = [("s", 160, 160), ("s", 480, 1), ("t", 320, 1)]
    assert cached(engine, talk(turns, segments)) == [0, 304, 304]


def test_hash_ids_that_change_are_another_conversation(engine: Engine) -> None:
    """The second prompt repeats 96 tokens of the first and nothing of its answer."""
    segments = [((1, 96), (2, 64)), ((1, 96), (3, 384))]
    assert cached(engine, talk([("s", 160, 160), ("s", 480, 1)], segments)) == [0, 96]


@pytest.mark.parametrize("engine", OTHERS)
@examples(150)
@given(
    data=st.data(), trace=conversations(), step_time=step_times, panel_bits=st.sampled_from((leaps.PANEL_BITS, (1,)))
)
def test_engines_agree_on_conversations(
    engine: str, data: st.DataObject, trace: Trace, step_time: RecordedStepTime, panel_bits: tuple[int, ...]
) -> None:
    """Turns that overlap as well: hits, evictions and all that follows from them."""
    config = data.draw(configs(trace))
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        assert_agreement(engine, trace, config, step_time)


@examples(150)
@given(trace=conversations(), block_size=st.sampled_from((1, 2, 3, 4, 16)))
def test_equal_keys_are_equal_blocks(trace: Trace, block_size: int) -> None:
    """Key by key against chained tokens: who shares a block has one key for it, and nobody else has that key."""
    config = make_config(block_size=block_size, num_gpu_blocks=10_000, max_model_len=10_000)
    requests = make_requests(trace, config)
    spans, num_keys = shared_block_keys(trace, trace.output_tokens, block_size)
    keys = [written_out(mine) for mine in spans[slice(0, len(trace))]]
    meanings: dict[int, int] = {}
    for request, mine in zip(requests, keys, strict=True):
        num_blocks = (request.num_prompt_tokens + request.max_tokens) // block_size
        contents = request.block_keys.upto(num_blocks)[:num_blocks]
        for key, content in zip(mine, contents, strict=False):
            assert meanings.setdefault(key, content) == content
    assert len(set(meanings.values())) == len(meanings) <= num_keys
    everybody = [set(request.block_keys.upto(0)) for request in requests]
    for row, mine in enumerate(keys):
        others = set().union(*everybody[:row], *everybody[row + 1 :])
        shared = [content for content in requests[row].block_keys.upto(0) if content in others]
        assert [meanings[key] for key in mine][: len(shared)] == shared


def test_many_turns_cost_no_more_than_few() -> None:
    """As many turns in one conversation as in a thousand take about as long, and as many keys as blocks are new."""
    count = 50_000
    seconds = []
    for num_sessions in (1000, 1):
        sessions = tuple(f"s{row % num_sessions}" for row in range(count))
        turn = np.arange(count) // num_sessions
        trace = replace(talk([("s", 1, 1)] * count), session_id=sessions, prompt_tokens=20 * turn + 10)
        trace = replace(trace, output_tokens=np.full(count, 10))
        started_s = time.process_time()
        _, num_keys = shared_block_keys(trace, trace.output_tokens, 10)
        seconds.append(time.process_time() - started_s)
        assert num_keys == num_sessions * (2 * (count // num_sessions - 1))
    assert seconds[1] < 5 * seconds[0]
