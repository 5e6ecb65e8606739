"""Requests that quote what others are still decoding: whose blocks are found from which pass on, token by token."""

from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine import leaps
from sim.engine.config import KVGroup, SchedulerConfig
from tests.engine.test_engines_agree import OTHERS, assert_agreement
from tests.makers import ONE_SECOND, Ask, Part, make_config, make_trace
from tests.properties import engine_examples as examples

GROUPS = ((KVGroup(),), (KVGroup(),), (KVGroup(), KVGroup(window=3)))


@st.composite
def sessions(draw: st.DrawFn) -> list[Ask]:
    """Most go on from some token of an earlier request, often one that it has not sampled when they arrive."""
    asks: list[Ask] = []
    lengths: list[int] = []
    at = 0
    for row in range(draw(st.integers(2, 6))):
        at += draw(st.sampled_from((0, 0, 0, 1, 2, 3)))
        own: tuple[Part, ...] = ((row, draw(st.integers(1, 10))),)
        prompt, output = own, draw(st.integers(1, 12))
        if row and draw(st.integers(0, 4)):
            earlier = draw(st.integers(0, row - 1))
            quoted: tuple[Part, ...] = ((asks[earlier].id, draw(st.integers(1, lengths[earlier]))),)
            prompt = quoted + own if draw(st.booleans()) else quoted
        asks.append(Ask(f"r{row}", prompt, output, at=at))
        lengths.append(sum(tokens for _, tokens in prompt) + output)
    return asks


@st.composite
def tight_configs(draw: st.DrawFn, longest: int) -> SchedulerConfig:
    """Hardly more blocks than the longest request needs, few tokens a step."""
    block_size, groups = draw(st.sampled_from((1, 1, 2, 3))), draw(st.sampled_from(GROUPS))
    return make_config(
        block_size=block_size,
        kv_groups=groups,
        num_gpu_blocks=1 + -(-longest // block_size) * len(groups) + draw(st.integers(0, 10)),
        max_num_batched_tokens=draw(st.sampled_from((2, 3, 4, 6, 16))),
        async_scheduling=draw(st.booleans()),
        long_prefill_token_threshold=draw(st.sampled_from((0, 0, 1, 2, 3))),
        long_prefill_token_threshold_adaptive=draw(st.booleans()),
        scheduler_reserve_full_isl=draw(st.booleans()),
    )


@pytest.mark.parametrize("engine", OTHERS)
@examples(200)
@given(data=st.data(), asks=sessions(), panel_bits=st.sampled_from((leaps.PANEL_BITS, (1,))))
def test_engines_agree_on_sessions(
    engine: str, data: st.DataObject, asks: list[Ask], panel_bits: tuple[int, ...]
) -> None:
    """Hits, evictions and all that follows from them."""
    trace = make_trace(asks)
    config = data.draw(tight_configs(int((trace.prompt_tokens + trace.output_tokens).max())))
    with patch.object(leaps, "PANEL_BITS", panel_bits):
        assert_agreement(engine, trace, config, ONE_SECOND)
