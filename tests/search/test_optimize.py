"""The optimizer's promises: it finds the best, is not fooled, says when nothing will do, and does the same twice."""

import json
import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sim
from sim.errors import ConfigError, DoesNotFitError
from sim.search import objective
from sim.search.blueprint import Blueprint, Params
from sim.search.evaluate import KEPT, Scenario, Task
from sim.search.fidelity import FINALISTS, LITTLE_WORK, SHARES
from sim.search.final_selection import judge
from sim.search.optimize import optimize
from sim.search.ranking import Candidate, is_tied
from sim.search.slices import Slice, representative, split_windows
from sim.search.space import Condition, Space
from sim.search.strategies import ENUMERABLE
from sim.specs.engine import EngineConfig
from sim.steptime.linear import LinearStepTime
from sim.workload.trace import Trace
from tests.search.makers import STEPS, gpu, make_runner, make_scenario, make_trace, model

KNOBS = {"max_num_seqs": (2, 8, 32), "max_num_batched_tokens": (64, 256, 1024), "num_gpu_blocks_override": (200, 1000)}


def answer(trace: Trace | None = None, **changes: Any) -> dict[str, Any]:
    """What `sim.optimize` says about a small space."""
    facts: dict[str, Any] = {
        "objective": "latency",
        "space": KNOBS,
        "engine": EngineConfig(max_model_len=2048),
        "step_time_model": STEPS,
        "intervals": False,
    }
    return sim.optimize(model(), gpu(), trace or make_trace(), **(facts | changes)).summary


def all_scores(scenario: Scenario, space: Space) -> list[tuple[tuple[float, ...], Params]]:
    """Every candidate on the whole trace, best first: the truth."""
    outcomes = [(scenario.try_out(Task(params)), params) for params in space.candidates()]
    feasible = [(scenario.target.rank(found.metrics), params) for found, params in outcomes if found.is_feasible]
    return sorted(feasible, key=lambda item: item[0])


@pytest.mark.parametrize("seed", range(4))
def test_the_choice_is_the_true_best_or_tied_with_it(seed: int) -> None:
    """On random workloads whose spaces can be enumerated: one for each objective, some with limits."""
    rng = np.random.default_rng(seed)
    goal = ("latency", "throughput", "cost", "goodput")[seed % 4]
    slo = ("ttft_p99=600ms", "e2el_p99=4s") if goal == "goodput" or seed % 3 == 0 else ()
    trace = make_trace(
        int(rng.integers(40, 120)), rate_rps=float(rng.uniform(2, 60)), seed=seed, most=int(rng.integers(50, 900))
    )
    steps = LinearStepTime(float(rng.uniform(1e-3, 3e-2)), float(rng.uniform(1e-6, 3e-4)), float(rng.uniform(0, 1e-6)))
    found = answer(trace, objective=goal, slo=slo, step_time_model=steps, seed=seed)
    scenario = make_scenario(trace, objective=goal, slo=slo, step_time=steps)
    truth = all_scores(scenario, Space(KNOBS))
    good = [params for rank, params in truth if rank == truth[0][0]]
    best = found["best"]
    winner_rank = scenario.target.rank(best["metrics"])
    is_level = winner_rank[0] == truth[0][0][0] and is_tied(truth[0][0][1:2], winner_rank[1:2])
    chosen = [best["engine"], *(one["engine"] for one in best["tied_with"])]
    assert is_level or any(
        all(engine[name] == value for name, value in params.items()) for engine in chosen for params in good
    )


def quiet_trace_with_long_requests(windows: Sequence[int]) -> Trace:
    """Two thousand short requests; a tenth of those in these windows are long."""
    trace = make_trace(2000, rate_rps=10.0, most=60)
    outputs = np.full(2000, 10)
    for window in windows:
        outputs[window * 40 : window * 40 + 40 : 10] = 400
    return replace(trace, output_tokens=outputs)


def test_a_setting_that_only_looks_best_on_the_screening_slice_is_not_chosen() -> None:
    """Two requests at a time are fastest while all are short; long ones, which screening does not see, then block the rest."""
    split = split_windows(2000, 0)
    screened = representative(split.seen, SHARES[-1], np.random.default_rng([0, 1]))
    trace = quiet_trace_with_long_requests([window for window in split.seen if window not in screened.windows])
    scenario = make_scenario(trace, slo=("ttft_p99=600ms",), step_time=LinearStepTime(1e-4, 1.1e-3, 0.0))
    space = Space({"max_num_seqs": (2, 3, 4, 64), "max_num_batched_tokens": (96, 128, 192, 256, 384, 512, 768, 1024)})
    assert space.size * len(trace) > LITTLE_WORK
    assert space.size > FINALISTS

    def seqs_by_rank(part: Slice) -> list[int]:
        tried = [(scenario.try_out(Task(params, part)).metrics, params) for params in space.candidates()]
        return [params["max_num_seqs"] for _, params in sorted(tried, key=lambda item: scenario.target.rank(item[0]))]

    assert 64 not in seqs_by_rank(screened)[:FINALISTS], "the trap is set"
    assert seqs_by_rank(Slice())[0] == 64
    findings = optimize(scenario, space, make_runner(scenario), trials=200, seed=0)
    assert findings.verdict.winner.candidate.params["max_num_seqs"] == 64
    assert {candidate.share for candidate in findings.candidates} == {SHARES[-1], 1.0}


def test_an_impossible_limit_gives_the_nearest_point_and_what_to_relax() -> None:
    """The nearest is that with the least excess; raised to what is named, the limit is kept."""
    found = answer(slo=["ttft_p99=1ms", "tpot_p99=1s"])
    assert found["feasible"] is False
    (relax,) = found["relax"]
    assert (relax["slo"], relax["limit_ms"]) == ("ttft_p99", 1)
    assert relax["to_ms"] > 1
    least = min(row["metrics"]["p99_ttft_ms"] for row in found["finalists"])
    assert relax["to_ms"] == least
    again = answer(slo=[f"ttft_p99={relax['to_ms'] + 0.001:.3f}ms", "tpot_p99=1s"])
    assert again["feasible"] is True


def test_limits_are_kept_where_that_costs_throughput() -> None:
    """Without a limit the largest batches win; with one on the gaps between tokens, smaller ones."""
    trace = make_trace(150, rate_rps=200.0)
    free = answer(trace, objective="throughput")
    bound = answer(trace, objective="throughput", slo=["itl_p99=30ms"])
    assert free["best"]["metrics"]["p99_itl_ms"] > 30
    assert bound["best"]["metrics"]["p99_itl_ms"] <= 30
    assert bound["best"]["metrics"]["output_throughput"] < free["best"]["metrics"]["output_throughput"]


def test_the_same_seed_gives_the_same_bytes() -> None:
    """Of a space that is too large to enumerate; test_fleet_search.py has it whatever the order in which trials come in."""
    others = {"watermark": (0.0, 0.01, 0.02, 0.05), "block_size": (16, 32), "scheduler_reserve_full_isl": (True, False)}
    knobs = {**KNOBS, **others, "long_prefill_token_threshold": tuple(range(0, 300, 25))}
    assert math.prod(map(len, knobs.values())) > ENUMERABLE
    one, again = (json.dumps(answer(space=knobs, trials=16, seed=7)) for _ in range(2))
    assert one == again
    other, same = answer(space=knobs, trials=16, seed=8), json.loads(one)
    assert (same["seed"], other["seed"], other["trials"]) == (7, 8, 16)
    assert json.dumps(other["candidates"]) != json.dumps(same["candidates"])


def test_the_number_of_trials_is_kept() -> None:
    """Apart from the winner with flags taken back, nothing more is tried."""
    knobs = {**KNOBS, "long_prefill_token_threshold": tuple(range(0, 300, 25))}
    assert answer(space=knobs, trials=20)["evaluated"] == 20


def test_several_goals_give_a_set_that_nothing_beats() -> None:
    """More replicas are faster and cost more: each number of them is a point."""
    space = {"replicas": [1, 2, 4], "max_num_seqs": [4, 32]}
    found = answer(make_trace(100, rate_rps=100.0), objective="cost,latency", space=space)
    points = [
        (row["metrics"]["usd_per_million_output_tokens"], row["metrics"]["p99_e2el_ms"]) for row in found["pareto"]
    ]
    assert {row["replicas"] for row in found["pareto"]} == {1, 2, 4}
    assert not any(a != b and a[0] <= b[0] and a[1] <= b[1] for a in points for b in points)


def test_what_cannot_serve_the_trace_is_a_row_with_its_reason() -> None:
    """A context that is too short, a combination that vLLM refuses, and a cache that is too small."""
    space = {
        "max_model_len": [64, 2048],
        "max_num_seqs": [16, 512],
        "max_num_batched_tokens": [256],
        "num_gpu_blocks_override": [10, 500],
    }
    found = answer(space=space)
    reasons = " ".join(row["reason"] for row in found["infeasible"])
    assert found["evaluated"] == 8 - found["infeasible"].count(None)
    assert len(found["infeasible"]) == 7
    assert "max_model_len=64 is too short" in reasons
    assert "max_num_seqs must not exceed max_num_batched_tokens" in reasons


@pytest.mark.parametrize("prefix", ["", "web."])
def test_values_that_exclude_each_other_are_no_candidate_that_serves(prefix: str) -> None:
    """Four adapters on the GPU and three on the host, alone and in a pool; two go, and what a knob takes by itself is told before."""
    knobs = {f"{prefix}{name}": values for name, values in {"max_loras": [2, 4], "max_cpu_loras": [3]}.items()}
    asked: dict[str, Any] = {
        "engine": sim.EngineConfig(enable_lora=True),
        "fleet": {"pools": [{"name": "web"}]} if prefix else None,
    }
    found = sim.optimize("Llama-3.1-8B", "h100-sxm", "chat", limit=20, trials=8, intervals=False, space=knobs, **asked)
    refused = found.summary["infeasible"]
    assert {row["reason"] for row in refused} == {"max_cpu_loras must be at least max_loras, 4, got 3; raise it."}
    assert {row["knobs" if prefix else "engine"][f"{prefix}max_loras"] for row in refused} == {4}
    with pytest.raises(ConfigError, match="max_loras must be"):
        sim.optimize("Llama-3.1-8B", "h100-sxm", "chat", limit=20, space={f"{prefix}max_loras": [0]}, **asked)


def test_nothing_that_fits_is_an_error_with_a_reason() -> None:
    with pytest.raises(DoesNotFitError, match=r"none of 1 candidates .* too short"):
        answer(space={"max_model_len": [64]})
    with pytest.raises(DoesNotFitError, match="has 2 GPUs at least, more than the 1 that gpus allows"):
        answer(space=Space({"replicas": (2,)}, gpus=1))
    at_odds = tuple(Condition({"replicas": (1,)}, {"max_num_seqs": (seqs,)}) for seqs in (8, 16))
    with pytest.raises(DoesNotFitError, match="no candidate that its conditions"):
        answer(space=Space({"replicas": (1,), "max_num_seqs": (8, 16)}, at_odds))


def test_flags_that_change_nothing_are_taken_back() -> None:
    """Of a tie the simplest is first: with room for all, neither knob has to be set."""
    found = answer(make_trace(30, rate_rps=1.0), space={"max_num_seqs": [None, 100, 200], "watermark": [None, 0.01]})
    assert set(found["best"]["engine"]) == {"max_model_len"}
    assert found["best"]["serve_command"].endswith("--max-model-len 2048")


def test_a_score_is_told_from_windows_that_the_search_did_not_see() -> None:
    """It equals a replay of the held-out windows, and not one of the whole trace."""
    trace = make_trace(200)
    best = answer(trace)["best"]
    scenario, split = make_scenario(trace), split_windows(len(trace), 0)
    assert set(split.seen).isdisjoint(split.held_out)
    held_out = scenario.try_out(Task({name: best["engine"][name] for name in KNOBS}, Slice(split.held_out)))
    assert best["held_out_score"] == held_out.metrics["p99_e2el_ms"]
    assert best["held_out_score"] != best["metrics"]["p99_e2el_ms"]


def test_a_candidate_stays_deployed_while_it_is_tried() -> None:
    """What was replayed on it before changes nothing; it is let go after as many others, and not sent to other processes."""
    trace, params = make_trace(80), {"max_num_seqs": 4}
    used, fresh = make_scenario(trace), make_scenario(trace)
    sent_bytes = len(pickle.dumps(used))
    first = used.deploy_fleet(params)
    used.try_out(Task(params, Slice((1,))))
    assert used.try_out(Task(params)) == fresh.try_out(Task(params))
    assert len(pickle.dumps(used)) - sent_bytes < 1_000 < len(pickle.dumps(first))
    for seqs in range(10, 9 + KEPT):
        used.deploy_fleet({"max_num_seqs": seqs})
    assert used.deploy_fleet(params) is first
    for seqs in range(10, 10 + KEPT):
        used.deploy_fleet({"max_num_seqs": seqs})
    assert used.deploy_fleet(params) is not first


def test_metrics_are_those_of_simulate() -> None:
    """The winner, replayed by `sim.simulate`, has the same figures."""
    best = answer()["best"]
    engine = EngineConfig(**best["engine"])
    result = sim.simulate(model(), gpu(), make_trace(), engine=engine, step_time_model=STEPS)
    assert {name: result.summary[name] for name in ("p99_e2el_ms", "mean_ttft_ms", "num_steps")} == {
        name: best["metrics"][name] for name in ("p99_e2el_ms", "mean_ttft_ms", "num_steps")
    }


def test_the_objective_is_a_function_for_any_optimizer() -> None:
    """It survives pickling, and takes any engine argument."""
    score = objective(
        model(), gpu(), make_trace(), objective="throughput,latency", slo=["ttft_p99=1s"], step_time_model=STEPS
    )
    copied = pickle.loads(pickle.dumps(score))  # noqa: S301 - written above
    found = copied({"max_num_seqs": 4, "max_model_len": 2048})
    assert found == score({"max_num_seqs": 4, "max_model_len": 2048})
    assert found["feasible"]
    assert found["losses"] == [-found["output_throughput"], found["p99_e2el_ms"]]
    assert score({"max_model_len": 64})["reason"].startswith("max_model_len=64")
    with pytest.raises(ConfigError, match="Did you mean max_num_seqs"):
        score({"max_num_sqs": 4})


def test_limits_name_what_a_queue_is_short_of() -> None:
    """Two requests at a time: the queue waits for max_num_seqs. The roofline shares out the busy time as a whole."""
    scenario = make_scenario(make_trace(80, rate_rps=100.0), step_time=None)
    limits = scenario.try_out(Task({"max_num_seqs": 2}, explains=True)).limits
    assert limits is not None
    assert limits.queued["max_num_seqs"] > 0.5 > limits.queued["kv_space"]
    assert sum(limits.busy.values()) == pytest.approx(1.0, abs=0.05)
    assert limits.busy["hbm_bandwidth"] > limits.busy["compute"]


def level(monkeypatch: pytest.MonkeyPatch, objective: str, *params: Params) -> list[bool]:
    """Who is tied with the first, where the forecast may be off by 60 %."""
    monkeypatch.setattr("sim.search.final_selection.forecast_band", lambda *_: 0.6)
    scenario, split = make_scenario(make_trace(200, rate_rps=2.0), objective=objective), split_windows(200, 0)
    seen = [(one, scenario.try_out(Task(one, Slice(split.seen)))) for one in params]
    candidates = [Candidate(one, 1, Blueprint().num_gpus(one), found, 1.0) for one, found in seen]
    verdict = judge(scenario, candidates, split, make_runner(scenario), seed=0)
    assert verdict is not None
    assert {str(finalist.candidate.params) for finalist in verdict.finalists} == set(map(str, params))
    return [finalist.is_tied for finalist in verdict.finalists]


def test_an_unsure_forecast_ties_only_what_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A latency a third longer may be none; half as many GPUs more cost half as much more at the pace of the trace."""
    assert level(monkeypatch, "latency", {"max_num_seqs": 32}, {"max_num_seqs": 2}) == [True, True]
    assert level(monkeypatch, "cost", {"replicas": 2}, {"replicas": 3}) == [True, False]


def test_ties_need_a_difference_that_stands_out() -> None:
    """One per cent is noise; four per cent are not, unless they come with as much spread."""
    level = [100.0] * 8
    assert is_tied(level, [101.0] * 8)
    assert not is_tied(level, [104.0] * 8)
    assert is_tied(level, [90.0, 118.0] * 4)
    assert is_tied(level, [104.0] * 8, noise=0.05)
    assert not is_tied(level, [float("inf")] * 8)


def test_clients_that_hold_back_wait_before_their_clock_starts() -> None:
    """One in flight never waits in the queue of the server, however fast the trace."""
    crowd = make_trace(rate_rps=200.0)
    together, alone = (
        objective(model(), gpu(), crowd, step_time_model=STEPS, max_concurrency=n)({}) for n in (None, 1)
    )
    assert alone["p99_ttft_ms"] < together["p99_ttft_ms"] / 2
    with pytest.raises(ConfigError, match="`max_concurrency` must be from 1 to"):
        objective(model(), gpu(), crowd, max_concurrency=0)


def test_the_router_is_searched_with_its_options() -> None:
    """Long and short requests in turn: short ones by themselves wait for none of the long. One replica is tried once."""
    trace = make_trace(80, rate_rps=4.0)
    long = np.arange(80) % 2 == 0
    trace = replace(trace, prompt_tokens=np.where(long, 1500, 20), output_tokens=np.where(long, 300, 5))
    routers = ("random", "prompt_length:threshold=100")
    found = answer(
        trace,
        objective="latency",
        space={"replicas": (1, 2), "router": routers},
        engine=EngineConfig(max_model_len=2048, max_num_seqs=2),
    )
    tried = [(row["replicas"], row["router"]) for row in found["candidates"]]
    assert sorted(tried) == [(1, "random"), (2, "prompt_length:threshold=100"), (2, "random")]
    scores = {row["router"]: row["score"] for row in found["candidates"] if row["replicas"] == 2}
    assert len(set(scores.values())) == 2
    assert found["best"]["router"] == min(scores, key=lambda router: scores[router])
    assert f"behind a {found['best']['router'].replace('_', '-')} router" in found["best"]["serve_command"]


def test_each_candidate_has_the_weights_that_it_asks_for() -> None:
    """A model that was looked up is quantised anew, in all of a fleet's pools or in those that say so; a ModelSpec cannot be."""
    shared = objective("Llama-3.1-8B", "h100-sxm", make_trace(), engine=EngineConfig(max_model_len=2048)).scenario
    plain, fp8 = (shared.deploy({"quantization": name}).plan.weights_bytes for name in (None, "fp8"))
    assert 0.5 < fp8 / plain < 0.6
    fleet = {"pools": [{"engine": {"quantization": "fp8"}}, {}]}
    mixed = objective("Llama-3.1-8B", "h100-sxm", make_trace(), fleet=fleet).scenario.deploy_fleet({})
    assert [pool.deployment.plan.weights_bytes for pool in mixed.pools] == [fp8, plain]
    given = objective(model(), "h100-sxm", make_trace(), engine=EngineConfig(max_model_len=2048))
    assert "Llama-3.1-8B is given as a ModelSpec of 16-bit weights" in given({"quantization": "fp8"})["reason"]
    with pytest.raises(ConfigError, match="give its name or path"):
        sim.simulate(model(), "h100-sxm", make_trace(), engine=EngineConfig(quantization="fp8"))
