"""What vLLM's bare scheduler would do for ever is told instead."""

import pytest

from sim.engine import fruitless
from sim.errors import ConfigError
from tests.engines import simulate
from tests.makers import ONE_SECOND, Ask, make_config, make_trace

ASKS = [Ask("A", 8, 4), Ask("B", 2, 4), Ask("C", 7, 1)]
LIMITS = {
    "num_gpu_blocks": 8,
    "block_size": 1,
    "max_num_batched_tokens": 3,
    "max_num_seqs": 3,
    "long_prefill_token_threshold": 1,
    "scheduling_policy": "priority",
    "enable_prefix_caching": False,
}


def test_requests_that_preempt_each_others_chunks_for_ever_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equals under priority, admitted by their first chunk: whoever has come furthest is the victim, again and again."""
    monkeypatch.setattr(fruitless, "MOST_FRUITLESS_PREEMPTIONS", 100)
    config = make_config(**LIMITS, scheduler_reserve_full_isl=False)
    with pytest.raises(
        ConfigError, match=r"preempt each other for ever: 100 preemptions .* scheduler_reserve_full_isl\.$"
    ):
        simulate(make_trace(ASKS), config, ONE_SECOND)


def test_the_admission_gate_lets_them_pass() -> None:
    """The same requests admitted whole all end."""
    records = simulate(make_trace(ASKS), make_config(**LIMITS, scheduler_reserve_full_isl=True), ONE_SECOND)
    assert records.requests.rejected[0] == "11 tokens of prompt and output need more than the 7 KV blocks there are"
    assert records.requests.generated_tokens.tolist() == [0, 4, 1]


def test_preemptions_with_tokens_between_them_are_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times A's prompt puts B's back before either has yielded a token; one such preemption at a time is allowed."""
    monkeypatch.setattr(fruitless, "MOST_FRUITLESS_PREEMPTIONS", 1)
    asks = [Ask(f"{name}{turn}", 12, 1, at=100 * turn) for turn in range(3) for name in "AB"]
    config = make_config(
        block_size=1,
        num_gpu_blocks=17,
        max_num_batched_tokens=4,
        long_prefill_token_threshold=2,
        scheduler_reserve_full_isl=False,
    )
    records = simulate(make_trace(asks), config, ONE_SECOND)
    assert records.requests.num_preemptions.tolist() == [0, 1, 0, 1, 0, 1]
    assert records.requests.generated_tokens.tolist() == [1] * 6
