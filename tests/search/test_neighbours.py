"""What is found beside the winner is fed back; layouts of GPUs are tried before anything is sampled."""

from typing import Any

import pytest

import sim
from sim.search.blueprint import Params
from sim.search.evaluate import Scenario, Task
from sim.search.fidelity import Round, Search
from sim.search.final_selection import judge
from sim.search.neighbours import Point, refined, sensitivity, settled
from sim.search.ranking import beats
from sim.search.recommend import Facts, recommendations
from sim.search.slices import Slice, split_windows
from sim.search.space import Space
from sim.search.strategies import around, layouts, propose, spread
from sim.specs.autotuning import AutotuningParameters
from sim.specs.engine import EngineConfig
from tests.search.makers import STEPS, gpu, make_runner, make_scenario, make_trace, model

LAYOUTS = Space({"watermark": (0.0, 0.01), "tensor_parallel_size": (1, 2, 4), "replicas": (1, 2, 3, 4)}, gpus=4)


def laid_out(params: Params) -> tuple[int, int]:
    return params["tensor_parallel_size"], params["replicas"]


def searched(scenario: Scenario, space: Space) -> Search:
    return Search(scenario, space, split_windows(len(scenario.trace), 0), make_runner(scenario), 0)


def test_every_layout_is_tried_before_anything_is_sampled() -> None:
    """The first batch holds each once, the other knobs as they come first; what is sampled comes on top."""
    batches: list[list[Params]] = []
    scenario = make_scenario()

    def try_out(new: Any, _: int) -> list[Any]:
        batches.append(list(new))
        return [scenario.try_out(Task(params)) for params in new]

    found = propose(scenario, LAYOUTS, try_out, trials=10, seed=0)
    assert {laid_out(params) for params in batches[0]} == {(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (4, 1)}
    assert {params["watermark"] for params in batches[0]} == {0.0}
    assert len(found) == 10
    assert all(params["watermark"] == 0.01 for batch in batches[1:] for params in batch)


def test_a_layout_that_does_not_start_as_it_is_has_one_knob_changed() -> None:
    """One GPU has no room for the cache in 16 bits; of layouts that never start, the smallest stands for all."""
    space = Space({"num_gpu_blocks_override": (5, 500), "tensor_parallel_size": (1, 3), "replicas": (1, 2)})
    found = layouts(make_scenario(), space)
    assert [(*laid_out(params), params["num_gpu_blocks_override"]) for params in found] == [
        (1, 1, 500),
        (1, 2, 500),
        (3, 1, 5),
    ]


def test_more_layouts_than_trials_are_spread() -> None:
    """From the fewest GPUs to the most."""
    assert [one["n"] for one in spread([{"n": number} for number in range(10)], 4)] == [0, 3, 6, 9]
    assert layouts(make_scenario(), Space({"max_num_seqs": (2, 4)})) == []


def test_a_cheaper_layout_beside_the_winner_takes_its_place() -> None:
    """The search saw four replicas alone; one does, and nothing that is varied then beats the answer."""
    scenario = make_scenario(make_trace(100, rate_rps=1.0), objective="cost", slo=("ttft_p99=5s",))
    search = searched(scenario, LAYOUTS)
    first = search.replay(
        [{"watermark": 0.0, "tensor_parallel_size": 1, "replicas": 4}], Round("finals", Slice(search.split.seen), 1.0)
    )
    verdict = judge(scenario, first, search.split, search.runner, seed=0)
    assert verdict is not None
    candidates, final, reactions = refined(search, first, verdict)
    assert laid_out(final.winner.candidate.params) == (1, 1)
    assert len(candidates) > 1
    own = {
        name: next(p for p in points if p.value == final.winner.candidate.params[name])
        for name, points in reactions.items()
    }
    assert not any(
        beats(scenario.target, point.outcome, own[name].outcome) for name in own for point in reactions[name]
    )


def test_a_slice_that_speaks_against_the_winner_is_settled_on_the_whole_trace() -> None:
    """Only that knob is replayed again, and says so."""
    scenario = make_scenario(make_trace(200, rate_rps=30.0))
    space, winner = Space({"max_num_seqs": (1, 32), "watermark": (0.0, 0.01)}), {"max_num_seqs": 1, "watermark": 0.0}
    runner = make_runner(scenario)
    found = settled(sensitivity(winner, space, Slice((0, 9, 20)), runner), winner, space, scenario.target, runner)
    assert [point.share for point in found["max_num_seqs"]] == [1.0, 1.0]
    assert [point.share for point in found["watermark"]] == [0.15, 0.15]
    assert found["max_num_seqs"][0].outcome == scenario.try_out(Task(winner))


def test_an_answer_on_the_whole_trace_has_one_score() -> None:
    """That of its metrics, and of what is tied with it; the part that the search did not see is told beside it."""
    found = sim.optimize(
        model(), gpu(), make_trace(200), objective="latency", space={"max_num_seqs": [2, 8, 32]},
        engine=EngineConfig(max_model_len=2048), step_time_model=STEPS,
    ).summary  # fmt: skip
    best = found["best"]
    assert best["score"] == best["metrics"]["p99_e2el_ms"] != best["held_out_score"]
    scores = [one["metrics"]["p99_e2el_ms"] for one in found["finalists"] if one["tied"]]
    assert [one["score"] for one in best["tied_with"]] == scores[1:]


def facts(neighbours: dict[str, tuple[Point, ...]], **metrics: Any) -> Facts:
    scenario = make_scenario(base=EngineConfig(max_model_len=2048, cudagraph_capture_sizes=(1, 2, 4)), step_time=None)
    deployment = scenario.deploy({})
    outcome = scenario.try_out(Task({}))
    changed = outcome._replace(metrics=outcome.metrics | {"cudagraph_step_fraction": 0.3} | metrics)
    return Facts(
        deployment.engine, deployment.plan, changed, scenario.target, 1.0, AutotuningParameters(), neighbours, 0.05
    )


@pytest.mark.parametrize(("sizes", "is_advised"), [((1, 2), True), ((1, 2, 4, 8), False), (None, False)])
def test_what_was_tried_beside_the_winner_is_not_advised(sizes: tuple[int, ...] | None, *, is_advised: bool) -> None:
    """Larger captures than the winner's were among its neighbours, or vLLM's own."""
    tried = Point(sizes, make_scenario().try_out(Task({})), 0.15)
    (sentence,) = (one for one in recommendations(facts({"cudagraph_capture_sizes": (tried,)})) if "coverage" in one)
    assert ("capture larger sizes than 4" in sentence) is is_advised
    assert ("tried and scores no better" in sentence) is not is_advised


def test_preemptions_leave_what_was_not_tried() -> None:
    """Fewer requests at a time were; an fp8 cache was not."""
    tried = Point(2, make_scenario().try_out(Task({})), 0.15)
    (sentence,) = (
        one for one in recommendations(facts({"max_num_seqs": (tried,)}, num_preemptions=7)) if "preempt" in one
    )
    assert "lower max_num_seqs" not in sentence
    assert "use an fp8 cache" in sentence


def test_a_layout_beside_the_winner_keeps_its_other_knobs() -> None:
    """As far as the space allows."""
    found = around({"watermark": 0.01, "tensor_parallel_size": 1, "replicas": 1}, LAYOUTS)
    assert {params["watermark"] for params in found} == {0.01}
    assert len(found) == 7
