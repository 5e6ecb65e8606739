"""Where the time of requests goes, by numbers worked out by hand, and that the parts add up in every mode."""

from typing import Any

import pytest

import sim
from sim.explanation.explain import Explanation
from sim.explanation.passes import watch
from sim.explanation.replica_time import replica_times
from sim.explanation.tail import LATENCIES, looked_at, request_spans, slowest_rows, tail
from sim.units import MS
from tests.explanation.conftest import run, timed, trace


def parts_of(result: sim.Result, name: str) -> dict[str, Any]:
    """Of the whole life of a request, in seconds."""
    row = list(result.trace.request_id).index(name)
    found = request_spans(result, row, watch(result, [row])[row], replica_times(result))
    sums = [(part, seconds) for span in found for part, seconds in span.seconds.items()]
    return {part: pytest.approx(sum(s for p, s in sums if p == part)) for part, seconds in sums if seconds}


def test_a_request_queues_until_another_has_ended(crowded: sim.Result) -> None:
    """A runs from 0 to 5. B comes in the third step; until 3 that is under way, and from then on the one seat is taken. Steps of a
    second are all the host's, where step times have nothing but a base.
    """
    assert parts_of(crowded, "A") == {"host": 5.0}
    assert parts_of(crowded, "B") == {"queue_other": 0.5, "queue_max_num_seqs": 2.0, "host": 3.0}
    assert parts_of(crowded, "C") == {"queue_other": 0.5, "queue_max_num_seqs": 5.0, "host": 3.0}


def test_prompts_in_one_step_share_its_time() -> None:
    """12 tokens at 0.1 s: A's 8 are 0.8 s and B's 4 are 0.4 s, and each waits for the other; then a step of 2 decodes, 0.2 s."""
    result = run(trace(("A", 0.0, 8, 2), ("B", 0.0, 4, 2)), timed(per_token_s=0.1))
    assert parts_of(result, "A") == {"own_prefill": 0.8, "others_prefill": 0.4, "decode": 0.2}
    assert parts_of(result, "B") == {"own_prefill": 0.4, "others_prefill": 0.8, "decode": 0.2}


def test_a_long_prompt_is_chunked_beside_decodes_and_slows_them() -> None:
    """A decodes while B's 20 tokens come in chunks of 7: steps of 0.8 s, of which 0.1 s is A's token; the last has 6 of B's."""
    result = run(
        trace(("A", 0.0, 8, 5), ("B", 0.5, 20, 1)), timed(per_token_s=0.1), max_num_batched_tokens=8, max_num_seqs=2
    )
    assert parts_of(result, "B") == {"queue_other": 0.3, "own_prefill": 2.0, "beside_decodes": 0.3}
    assert parts_of(result, "A") == {"own_prefill": 0.8, "decode": 0.4, "slow_steps": 2.0}


def test_a_budget_that_is_used_up_is_what_a_request_waits_for() -> None:
    """A's 16 tokens take two whole steps of 0.8 s; B, which came with it, is in the third."""
    result = run(
        trace(("A", 0.0, 16, 1), ("B", 0.0, 4, 1)), timed(per_token_s=0.1), max_num_batched_tokens=8, max_num_seqs=2
    )
    assert parts_of(result, "B") == {"queue_token_budget": 1.6, "own_prefill": 0.4}


def test_what_a_preempted_request_had_is_computed_again() -> None:
    """Three blocks of 16 for two requests of 16 tokens: both have one, A gets the third for its second token, and B none for its own.
    B computes its 16 tokens and the one that it had generated again when A has ended.
    """
    result = run(
        trace(("A", 0.0, 16, 4), ("B", 0.0, 16, 4)),
        timed(base_s=1.0),
        num_gpu_blocks_override=4,
        enable_prefix_caching=False,
        max_model_len=32,
    )
    assert result.summary["num_preemptions"] == 1
    assert parts_of(result, "B") == {"preempted": 3.0, "host": 4.0}
    tokens = run(
        trace(("A", 0.0, 16, 4), ("B", 0.0, 16, 4)),
        timed(per_token_s=0.1),
        num_gpu_blocks_override=4,
        enable_prefix_caching=False,
        max_model_len=32,
    )
    assert parts_of(tokens, "B") == {
        "own_prefill": 1.6,
        "others_prefill": 1.6,
        "preempted": 0.3,
        "recomputed": 1.7,
        "decode": 0.2,
    }


BUSY: dict[str, Any] = {"limit": 60, "rate_scale": 8.0, "intervals": False}


@pytest.mark.parametrize(
    "how",
    [
        {"engine": sim.EngineConfig(num_gpu_blocks_override=1100, max_model_len=16384)},
        {"engine": sim.EngineConfig(max_num_batched_tokens=512, async_scheduling=False, enable_prefix_caching=False)},
        {"engine": sim.EngineConfig(pipeline_parallel_size=2)},
        {"engine": sim.EngineConfig(batching="static", max_num_seqs=8)},
        {"replicas": 2, "router": "round_robin"},
        {"fleet": {"pools": [{"role": "prefill"}, {"role": "decode"}]}},
        {"fleet": {"pools": [{"replicas": 2}], "faults": [{"replica": 1, "at_s": 2.0}]}},
        {"replicas": 2, "kv_store": "capacity_gib=64"},
    ],
)
def test_parts_add_up_to_the_latencies(how: dict[str, Any]) -> None:
    """Of the slowest requests, whatever serves them: to the mean of their own TTFT, TPOT and E2EL."""
    result = sim.simulate("Llama-3.1-8B", "h100-sxm", "chat", **BUSY, **how)
    requests = result.records.requests
    slowest = slowest_rows(requests)
    rows = {row for _, some in slowest.values() for row in looked_at(some).tolist()}
    found = tail(result, slowest, watch(result, rows), replica_times(result))
    for name, one in found.items():
        seconds = LATENCIES[name](requests)[looked_at(slowest[name][1])]
        assert one.mean_ms == pytest.approx(seconds.mean() / MS, rel=1e-9)
        assert one.p99_ms == pytest.approx(result.summary[f"p99_{name}_ms"])
        assert min(one.parts_ms.values()) > 0


def test_a_run_in_a_paragraph(crowded: sim.Result) -> None:
    """B waits from 2.5 s and C until 8, of 11 s; from 3 s on the seat is what they wait for, 5 s of that time."""
    found = sim.explain(crowded, tries=False)
    assert isinstance(found, Explanation)
    assert "3 requests were served in 11.0 s" in found.text
    assert "Requests waited for max_num_seqs in 45% of the time, nearly all of it from 3." in found.text
    assert "TTFT of 6,440 ms and more, queueing for max_num_seqs 77%" in found.text


def test_a_run_in_which_nothing_was_served() -> None:
    """Its requests were turned away."""
    found = sim.explain(
        run(
            trace(
                ("A", 0.0, 999, 5),
            ),
            timed(1.0),
            max_model_len=100,
        ),
        tries=False,
    )
    assert "None of 1 requests was completed" in str(found)
