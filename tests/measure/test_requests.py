"""What a workload asks of a server, as requests."""

from pathlib import Path

import numpy as np
import pytest

from sim.errors import RunsError
from sim.measure.requests import asked
from sim.measure.runs import Requests
from tests.measure.makers import CLOSED_LOOP, OPEN_LOOP, make_run


def test_stages_follow_each_other(tmp_path: Path) -> None:
    """4 a second for 20 s, then 8 a second: within five standard deviations of 80 and 160, each in its stage."""
    trace, stage, concurrency = asked(make_run(tmp_path).workload, seed=1, block_size=16)
    assert concurrency is None
    assert abs((stage == 0).sum() - 80) < 5 * 80**0.5
    assert abs((stage == 1).sum() - 160) < 5 * 160**0.5
    assert trace.arrival_s[stage == 0].max() < 20 <= trace.arrival_s[stage == 1].min()


def test_prompts_go_round_and_share_whole_blocks(tmp_path: Path) -> None:
    """6 prompts in 3 groups: the seventh repeats the first; 32 of 40 shared tokens are whole blocks of 16."""
    trace, _, _ = asked(make_run(tmp_path).workload, seed=1, block_size=16)
    assert trace.segments is not None
    first, *_, fourth, _, _, seventh = trace.segments[:7]
    assert first == seventh == ((0, 32), (3, 68))
    assert fourth[0] == first[0]
    assert fourth[1] != first[1]
    assert set(trace.prompt_tokens) == {100}


def test_nothing_shared_is_one_segment(tmp_path: Path) -> None:
    """Prompts whose shared part is below a block have a single segment each."""
    prompts = OPEN_LOOP["prompts"] | {"shared_tokens": 0, "distinct": None, "groups": None}
    trace, _, _ = asked(make_run(tmp_path, workload=OPEN_LOOP | {"prompts": prompts}).workload, seed=1, block_size=16)
    assert trace.segments is not None
    assert len(set(trace.segments)) == 45
    assert {len(path) for path in trace.segments} == {1}


def test_the_same_seed_asks_the_same(tmp_path: Path) -> None:
    """And another seed something else."""
    workload = make_run(tmp_path).workload
    once, again, other = (asked(workload, seed=seed, block_size=16).trace.arrival_s for seed in (3, 3, 4))
    assert np.array_equal(once, again)
    assert not np.array_equal(once[:5], other[:5])


def test_closed_loops_draw_lengths_between_their_bounds(tmp_path: Path) -> None:
    """Both bounds included."""
    workload = make_run(tmp_path, workload=CLOSED_LOOP | {"output_tokens": {"uniform": [1, 2]}}).workload
    trace, _, concurrency = asked(workload, seed=1, block_size=16)
    assert (len(trace), concurrency) == (20, 4)
    assert set(trace.output_tokens) == {1, 2}
    assert trace.prompt_tokens.min() >= 100
    assert trace.prompt_tokens.max() <= 200


def test_closed_loops_ask_what_vllm_bench_serve_asks(tmp_path: Path) -> None:
    """After `np.random.seed(0)`, `np.random.randint` gives 144, 147, 164 and 167 from 100 to 200, and then the answers."""
    workload = make_run(tmp_path, workload=CLOSED_LOOP | {"num_requests": 4}).workload
    trace = asked(workload, seed=0, block_size=16).trace
    assert trace.prompt_tokens.tolist() == [144, 147, 164, 167]
    np.random.seed(0)  # noqa: NPY002 -- the very calls
    low, high = CLOSED_LOOP["output_tokens"]["uniform"]
    drawn = [np.random.randint(100, 201, 4), np.random.randint(low, high + 1, 4)]  # noqa: NPY002
    assert trace.output_tokens.tolist() == drawn[1].tolist()


def test_recorded_requests_arrive_in_order() -> None:
    """From the first start on; with a concurrency, starts are the replay's business."""
    facts = {"kind": "requests", "start_s": (7.0, 5.0), "prompt_tokens": (1, 2), "output_tokens": (3, 4)}
    trace = asked(Requests.model_validate(facts), seed=0, block_size=16).trace
    assert trace.arrival_s.tolist() == [0.0, 2.0]
    assert trace.prompt_tokens.tolist() == [2, 1]
    closed = asked(Requests.model_validate(facts | {"concurrency": 1}), seed=0, block_size=16)
    assert closed.concurrency == 1
    assert closed.trace.arrival_s.tolist() == [0.0, 0.0]


def test_traces_in_other_blocks_are_refused(tmp_path: Path) -> None:
    """Native traces have ids for blocks of 16 tokens."""
    run = make_run(tmp_path, workload={"kind": "trace", "file": "t.jsonl", "hash_block_size": 32})
    with pytest.raises(RunsError, match="`hash_block_size` must be 16, got 32"):
        asked(run.workload, seed=0, block_size=16)
