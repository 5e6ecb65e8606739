"""A search over the pools of a fleet file: it finds the best fleet, which is simulated as it says, and does the same twice."""

import json
import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import sim
from sim.errors import ConfigError, DoesNotFitError
from sim.report.search import optimization_text
from sim.search import objective, runner
from sim.search.blueprint import Params
from sim.search.evaluate import Scenario, Task
from sim.search.fleet_space import DECIDERS, default_fleet_space
from sim.search.ranking import is_tied
from sim.search.recommend import MANY_WAIT
from sim.search.space import Space
from sim.search.store import TrialStore, study_id
from sim.search.strategies import ENUMERABLE
from sim.specs.engine import EngineConfig
from sim.specs.fleet_file import read_fleet
from sim.specs.hardware import profile_values
from sim.steptime.linear import LinearStepTime
from sim.workload.rates import scale_rate
from sim.workload.trace import Trace
from tests.search.makers import gpu, make_scenario, make_trace, model

ENGINE = EngineConfig(max_model_len=2048)
STEPS = LinearStepTime(base_s=0.002, per_token_s=2e-5, per_context_token_s=0.0)
SHORT = make_trace(40, rate_rps=150.0)
ROLES: dict[str, Any] = {
    "router": "round_robin",
    "transfer": {"bandwidth_gb_s": 50},
    "pools": [{"name": "prompts", "role": "prefill"}, {"name": "answers", "role": "decode"}],
}
RATIO: dict[str, tuple[Any, ...]] = {
    "prompts.replicas": (1, 2, 3),
    "answers.replicas": (1, 2, 3),
    "answers.max_num_seqs": (2, 16),
}
FEW: dict[str, tuple[Any, ...]] = {"prompts.replicas": (1, 2), "answers.max_num_seqs": (2, 16)}
MIXED = {"pools": [{"name": "small"}, {"name": "large", "gpu": "h200-sxm", "engine": {"max_num_seqs": 4}}]}


def alike(num_prompt_tokens: int, num_output_tokens: int) -> Trace:
    """Forty requests of that shape, forty a second."""
    trace = make_trace(40, rate_rps=40.0)
    lengths = {"prompt_tokens": num_prompt_tokens, "output_tokens": num_output_tokens}
    prompts, outputs = (np.full(len(trace), tokens) for tokens in lengths.values())
    return replace(trace, prompt_tokens=prompts, output_tokens=outputs)


LONG_PROMPTS = alike(1900, 10)  # 40 ms each, and 20 ms a seat to answer
LONG_ANSWERS = alike(20, 100)  # 2 ms each, and 200 ms a seat


def answer(fleet: Any = ROLES, trace: Trace | None = None, **changes: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "objective": "latency", "space": RATIO, "engine": ENGINE, "step_time_model": STEPS, "intervals": False
    }  # fmt: skip
    return sim.optimize(model(), gpu(), trace or SHORT, fleet=fleet, **(facts | changes)).summary


def truth(scenario: Scenario, space: Space) -> list[tuple[tuple[float, ...], Params]]:
    """Every candidate on the whole trace, best first."""
    outcomes = [(scenario.try_out(Task(params)), params) for params in space.candidates()]
    found = [(scenario.target.rank(one.metrics), params) for one, params in outcomes if one.is_feasible]
    return sorted(found, key=lambda item: item[0])


@pytest.mark.parametrize(
    ("trace", "goal"),
    [(SHORT, "latency"), (LONG_PROMPTS, "goodput"), (LONG_PROMPTS, "cost")],
    ids=["short-latency", "long-goodput", "long-cost"],
)
def test_the_ratio_is_the_true_best_or_tied_with_it(trace: Trace, goal: str) -> None:
    """Of all fleets of four GPUs."""
    slo = ("ttft_p99=150ms", "e2el_p99=600ms") if goal == "goodput" else ()
    scenario = make_scenario(trace, objective=goal, slo=slo, step_time=STEPS, fleet=read_fleet(ROLES), router=None)
    space = Space(RATIO, gpus=4, over=scenario.blueprint)
    best, first = answer(trace=trace, objective=goal, slo=slo, space=space)["best"], truth(scenario, space)[0]
    rank = scenario.target.rank(best["metrics"])
    assert best["knobs"] == first[1] or is_tied(first[0][1:2], rank[1:2], 0.03)
    assert rank[0] <= first[0][0]
    assert best["num_gpus"] <= 4


def test_gpus_go_to_the_pool_that_needs_them() -> None:
    """Of four: most prefill where prompts are long, and answer, two at a time each, where answers are."""
    space = {**RATIO, "answers.max_num_seqs": (2,)}
    over = make_scenario(fleet=read_fleet(ROLES)).blueprint
    found = [answer(trace=trace, space=Space(space, gpus=4, over=over)) for trace in (LONG_PROMPTS, LONG_ANSWERS)]
    ratios = [(one["best"]["knobs"]["prompts.replicas"], one["best"]["knobs"]["answers.replicas"]) for one in found]
    assert ratios[0] in {(2, 1), (2, 2), (3, 1)}
    assert ratios[1] == (1, 3)


def test_one_pool_is_searched_as_equal_replicas_are() -> None:
    """A file of one pool has the candidates, the figures and the winner of no file."""
    space = {"replicas": (1, 2), "max_num_seqs": (None, 2, 8)}
    named = {f"web.{name}": values for name, values in space.items()}
    alike = answer(None, space=space)
    pooled = answer({"pools": [{"name": "web"}]}, space=named)
    scores = [[row["score"] for row in found["candidates"]] for found in (alike, pooled)]
    assert scores[0] == scores[1]
    assert pooled["best"]["knobs"] == {f"web.{name}": alike["best"][name] for name in ("replicas",)} | {
        f"web.{name}": value for name, value in alike["best"]["engine"].items() if name in space
    }
    assert pooled["best"]["pools"][0]["engine"] == alike["best"]["engine"]
    assert [pooled["best"][key] for key in ("held_out_score", "num_gpus")] == [
        alike["best"][key] for key in ("held_out_score", "num_gpus")
    ]
    assert pooled["best"]["limits"]["text"] == f"web: {alike['best']['limits']['text']}"


def test_the_best_fleet_is_a_file_with_the_figures_that_are_printed(tmp_path: Path) -> None:
    """Read back and simulated, without what was given for all or with it; an argument that a pool took back stays so."""
    fleet = {
        "decider": "prefix_based:non_cached_tokens=100",
        "pools": [
            {"name": "prompts", "role": "prefill", "engine": {"block_size": None}},
            {"name": "answers", "role": "decode", "engine": {"max_num_seqs": 4}},
            {"name": "spare", "gpu": "h200-sxm"},
        ],
    }
    engine = EngineConfig(max_model_len=2048, block_size=32)
    space = {
        "prompts.replicas": (1, 2),
        "spare.replicas": (0,),
        "max_num_batched_tokens": (512,),
        "router": ("random",),
    }
    result = sim.optimize(
        model(), gpu(), SHORT, objective="cost", fleet=fleet, space=space, engine=engine, step_time_model=STEPS,
        intervals=False,
    )  # fmt: skip
    best, path = result.best, tmp_path / "best_fleet.yaml"
    path.write_text(yaml.safe_dump(best["fleet"]))
    assert [pool["name"] for pool in best["fleet"]["pools"]] == ["prompts", "answers"]
    assert {pool["engine"]["max_num_batched_tokens"] for pool in best["fleet"]["pools"]} == {512}
    for given in (engine, EngineConfig(), EngineConfig(block_size=32)):
        facts: dict[str, Any] = {"step_time_model": STEPS, "intervals": False, "fleet": path, "engine": given}
        again = sim.simulate(model(), gpu(), SHORT, **facts).summary
        pools = [{key: value for key, value in pool.items() if key != "limits"} for pool in best["metrics"]["pools"]]
        assert again["pools"] == pools
        assert {key: again[key] for key in ("p99_e2el_ms", "mean_ttft_ms", "cost_usd", "num_steps")} == {
            key: best["metrics"][key] for key in ("p99_e2el_ms", "mean_ttft_ms", "cost_usd", "num_steps")
        }


def test_the_same_seed_gives_the_same_bytes_here_and_in_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are too many fleets to enumerate: layouts first, then what is proposed."""
    values: dict[str, tuple[Any, ...]] = {
        "replicas": (1, 2, 3, 4),
        "max_num_seqs": (None, 4, 16),
        "max_num_batched_tokens": (None, 64, 512),
    }
    knobs = {f"{pool}.{name}": few for pool in ("small", "large") for name, few in values.items()}
    knobs["router"] = ("random", "round_robin")
    assert math.prod(map(len, knobs.values())) > ENUMERABLE
    monkeypatch.setattr(runner, "PATIENCE_S", 0)
    here, pooled = (json.dumps(answer(MIXED, space=knobs, trials=8, seed=3, workers=count)) for count in (1, 2))
    assert here == pooled
    found = json.loads(here)
    laid_out = [row for row in found["candidates"] if "small.max_num_seqs" not in row["knobs"]]
    assert 8 <= found["evaluated"] > len(laid_out)
    assert {2, 8} <= {row["num_gpus"] for row in laid_out}


def test_trials_are_kept_for_the_same_fleet_alone(tmp_path: Path) -> None:
    """A search that finds them in the store says the same bytes and adds nothing; another fleet's are not taken."""
    store = tmp_path / "trials.sqlite"
    first = answer(store=store, space=FEW)
    scenario = make_scenario(SHORT, step_time=STEPS, objective="latency", fleet=read_fleet(ROLES), router=None)
    with closing(TrialStore(store, study_id(scenario))) as kept:
        assert kept.get(Task(first["best"]["knobs"], explains=True).key) is not None
        kept.put("mark", kept.get(Task(first["best"]["knobs"], explains=True).key))  # type: ignore[arg-type]
    assert json.dumps(answer(store=store, space=FEW)) == json.dumps(first)
    others = [
        replace(scenario, fleet=read_fleet({**ROLES, "router": "random"})),
        replace(scenario, fleet=None),
        replace(scenario, fleet=read_fleet(ROLES), router="random"),
    ]
    assert len({study_id(one) for one in (scenario, *others)}) == 4


def test_a_gpu_of_a_pool_that_changes_is_another_study(tmp_path: Path) -> None:
    """Its profile counts, not the name of the file."""
    path = tmp_path / "gpu.yaml"
    ids = []
    for price in (1.0, 2.0):
        path.write_text(yaml.safe_dump(profile_values("h200-sxm") | {"price_usd_per_hour": price}))
        ids.append(study_id(make_scenario(fleet=read_fleet({"pools": [{"gpu": str(path)}]}))))
    assert ids[0] != ids[1]


def test_pools_on_different_gpus_compete_by_cost() -> None:
    """Either may be left out; the cheaper one serves by itself what both would serve."""
    found = answer(MIXED, objective="cost", space={"small.replicas": (0, 1, 2), "large.replicas": (0, 1, 2)})
    assert found["evaluated"] == 8
    assert found["best"]["knobs"] == {"small.replicas": 1, "large.replicas": 0}
    assert [pool["gpu"] for pool in found["pools"]] == ["h100-sxm", "h200-sxm"]
    assert found["gpu"] is None
    assert "confidence" in found
    assert {point["value"] for point in found["sensitivity"]["large.replicas"]} == {0, 1, 2}


def test_several_goals_give_a_set_of_fleets() -> None:
    """More GPUs answer sooner and cost more."""
    found = answer(MIXED, objective="cost,latency", space={"small.replicas": (0, 1, 2, 4), "large.replicas": (0, 1, 2)})
    points = [(row["metrics"]["cost_usd"], row["metrics"]["p99_e2el_ms"]) for row in found["pareto"]]
    assert len(points) > 1
    assert not any(a != b and a[0] <= b[0] and a[1] <= b[1] for a in points for b in points)


def test_the_text_has_a_table_of_pools_a_file_and_a_line_a_pool() -> None:
    found = answer(slo=("ttft_p99=10s",), space=FEW)
    text = optimization_text(found)
    assert "best for latency: prompts.replicas=" in text
    assert "prompts: memory per GPU: weights" in text
    assert "answers limited by: waits for" in text or "answers limited by: nothing" in text
    counts = {pool["pool"]: pool["replicas"] for pool in found["best"]["pools"]}
    for name, count in counts.items():
        assert f"  # {name}, {count} times" in found["best"]["serve_command"]
    block = text.split("best_fleet.yaml:\n")[1].split("\n\n")[0]
    assert yaml.safe_load(block) == found["best"]["fleet"]
    assert "(the fleet as given " in text


def test_a_router_that_is_searched_takes_the_place_of_the_one_given() -> None:
    """As --router is that of a lone deployment where no knob is; a file's own and --router are one too many."""
    fleet = {"pools": [{"name": "web", "replicas": 2}]}
    searched = answer(fleet, router="random", space={"router": ("round_robin",)})["best"]
    assert searched["router"] == searched["fleet"]["router"] == "round_robin"
    assert answer(fleet, router="random", space={"web.max_num_seqs": (4,)})["best"]["fleet"]["router"] == "random"


def test_a_fleet_is_as_sure_as_its_least_known_pool() -> None:
    """As `simulate` says of the same fleet; a GPU that nothing was measured on comes second in the file."""
    fleet = {"pools": [{"name": "known"}, {"name": "other", "gpu": "l4"}]}
    trace = SHORT.first(10)
    found = answer(fleet, trace=trace, step_time_model=None, space={"known.max_num_seqs": (8,)})
    facts: dict[str, Any] = {"engine": ENGINE, "intervals": False, "fleet": found["best"]["fleet"]}
    again = sim.simulate(model(), gpu(), trace, **facts).summary["confidence"]
    assert {key: found["confidence"][key] for key in again} == again
    alone = sim.simulate(model(), gpu(), trace, engine=ENGINE, intervals=False).summary["confidence"]
    assert again["bands_percent"]["tpot"] > alone["bands_percent"]["tpot"]


def test_costs_need_the_price_of_every_pool(tmp_path: Path) -> None:
    """A GPU without one is named."""
    values = {name: value for name, value in profile_values("h200-sxm").items() if "price" not in name}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match="--objective cost needs the price of h200-sxm"):
        answer({"pools": [{}, {"gpu": str(tmp_path / "mine.yaml")}]}, objective="cost", space={"max_num_seqs": (4,)})


def advice(found: Mapping[str, Any]) -> str:
    return " ".join(found["recommendations"])


def test_advice_names_the_pool_and_what_was_tried_of_it() -> None:
    """Two seats are too few; more were not tried, or were and gain nothing where the trace is the limit."""
    trace = make_trace(60, rate_rps=600.0)
    few = {"name": "answers", "role": "decode", "engine": {"max_num_seqs": 2}}
    fleet = {**ROLES, "pools": [ROLES["pools"][0], few]}
    found = answer(fleet, trace=trace, space={"prompts.replicas": (1,)})
    assert "answers: Requests wait" in advice(found)
    assert "raise max_num_seqs above 2" in advice(found)
    web = {"pools": [{"name": "web", "engine": {"max_num_seqs": 2}}]}
    keeps_up = make_trace(60, rate_rps=13.0)
    tried = answer(web, trace=keeps_up, objective="throughput", space={"web.max_num_seqs": (2, 4)})
    assert tried["best"]["knobs"] == {"web.max_num_seqs": 2}
    assert "web: Requests wait" in advice(tried)
    assert "what would change that was tried and scores no better" in advice(tried)


def test_advice_is_for_what_a_pool_does() -> None:
    """Prompts alone replay no graphs, and answers whose KV is on its way do not want for space."""
    found = answer(trace=LONG_PROMPTS, space={"prompts.replicas": (1,)})
    prompts, answers = found["best"]["metrics"]["pools"]
    assert prompts["cudagraph_step_fraction"] < 0.1
    assert answers["limits"]["queued"]["kv_space"] < MANY_WAIT
    assert answers["max_kv_cache_usage"] < 0.1
    assert "graph" not in advice(found)
    assert "kv space" not in advice(found)


def test_a_tier_is_a_knob() -> None:
    """Of a lone deployment and of a pool: sessions that come back find in host memory what the GPU had no room for."""
    turns = scale_rate(sim.read_trace("multi-turn", limit=120), 4.0)
    engine = EngineConfig(max_model_len=8192, num_gpu_blocks_override=1000)
    facts: dict[str, Any] = {"objective": "latency", "engine": engine, "step_time_model": None, "intervals": False}
    alone = sim.optimize(model(), gpu(), turns, space={"kv_offloading_size": (None, 20.0)}, **facts).summary
    scores = {row["engine"].get("kv_offloading_size"): row["metrics"] for row in alone["candidates"]}
    assert scores[20.0]["mean_ttft_ms"] < scores[None]["mean_ttft_ms"]
    pooled = sim.optimize(
        model(),
        gpu(),
        turns,
        fleet={"pools": [{"name": "web"}]},
        space={"web.kv_offloading_size": (None, 20.0)},
        **facts,
    ).summary
    assert [row["score"] for row in pooled["candidates"]] == [row["score"] for row in alone["candidates"]]


BETWEEN: dict[str, Any] = {
    "objective": "latency",
    "engine": EngineConfig(max_model_len=8192, num_gpu_blocks_override=1000),
    "step_time_model": None,
    "intervals": False,
    "router": "round_robin",
}


def test_a_store_is_a_knob() -> None:
    """Of equal replicas and of a pool, with none as one of its values: turns find in it what another replica computed."""
    turns = scale_rate(sim.read_trace("multi-turn", limit=120), 4.0)
    stores = (None, "capacity_gib=1", "capacity_gib=64")
    space: dict[str, tuple[Any, ...]] = {"replicas": (3,), "kv_store": stores}
    alone = sim.optimize(model(), gpu(), turns, space=space, **BETWEEN).summary
    scores = {row["kv_store"]: row["score"] for row in alone["candidates"]}
    assert scores["capacity_gib=64"] < scores["capacity_gib=1"] < scores[None]
    assert alone["best"]["kv_store"] is None, "the simplest of those that are tied"
    pools = {"pools": [{"name": "web", "replicas": 3}]}
    pooled = sim.optimize(model(), gpu(), turns, fleet=pools, space={"kv_store": stores}, **BETWEEN).summary
    assert [row["score"] for row in pooled["candidates"]] == [row["score"] for row in alone["candidates"]]


@pytest.mark.parametrize("shared", [{"kv_store": "capacity_gib=64"}, {"kv_pull": "kv_recompute_threshold=64"}])
def test_what_all_candidates_share_is_given_as_to_simulate(shared: dict[str, Any]) -> None:
    """Beside replicas and beside a fleet file, of which the answer's has it; and it is another study."""
    turns = scale_rate(sim.read_trace("multi-turn", limit=60), 4.0)
    facts = {name: value for name, value in BETWEEN.items() if name != "objective"}
    replayed = sim.simulate(model(), gpu(), turns, replicas=3, **facts, **shared).summary
    plain = sim.simulate(model(), gpu(), turns, replicas=3, **facts).summary
    assert replayed["mean_ttft_ms"] != plain["mean_ttft_ms"]
    alone = sim.optimize(model(), gpu(), turns, space={"replicas": (3,)}, **BETWEEN, **shared).summary
    pools = {"pools": [{"name": "web", "replicas": 3}]}
    pooled = sim.optimize(
        model(), gpu(), turns, fleet=pools, space={"max_num_seqs": (None,)}, **BETWEEN, **shared
    ).summary
    for found in (alone, pooled):
        assert found["best"]["metrics"]["mean_ttft_ms"] == replayed["mean_ttft_ms"]
    assert shared.items() <= pooled["best"]["fleet"].items()
    ((name, options),) = shared.items()
    assert f"# 3 times, behind a round-robin router, with {name} {options}" in optimization_text(alone)
    assert study_id(make_scenario(**shared)) != study_id(make_scenario())


def test_the_default_space_leaves_what_is_said() -> None:
    """Seats where requests are answered, tokens where prompts are computed, GPUs shared out where a number is given."""
    said = {**ROLES, "decider": "always", "pools": [*ROLES["pools"], {"name": "whole", "engine": {"max_num_seqs": 8}}]}
    scenario = make_scenario(fleet=read_fleet(said), router=None)
    found = default_fleet_space(scenario)
    assert set(found.knobs) == {
        "prompts.max_num_batched_tokens",
        "answers.max_num_seqs",
        "whole.max_num_batched_tokens",
    }
    assert set(found.fixed) == {"router", "decider", "whole.max_num_seqs"}
    shared = default_fleet_space(make_scenario(fleet=read_fleet({"pools": said["pools"]}), router=None), gpus=4)
    assert shared.knobs["answers.replicas"] == (1, 2, 3, 4)
    assert shared.knobs["prompts.tensor_parallel_size"] == (1, 2, 4)
    assert shared.knobs["decider"] == DECIDERS
    assert (shared.gpus, shared.least_gpus) == (4, 3)
    with pytest.raises(ConfigError, match="--gpus shares out replicas, and on that the fleet's autoscale decides"):
        default_fleet_space(make_scenario(fleet=read_fleet({"autoscale": "hpa"})), gpus=4)


def test_servers_may_have_several_ranks_where_there_are_experts() -> None:
    """In pools of a fleet that stays as it is; two servers of two ranks are a candidate on four GPUs."""
    experts: dict[str, Any] = {"model": model("Qwen3-30B-A3B"), "router": None}
    space = default_fleet_space(make_scenario(fleet=read_fleet({"pools": [{"name": "one"}]}), **experts), gpus=4)
    assert space.knobs["one.data_parallel_size"] == (None, 2, 4)
    assert space.knobs["one.enable_expert_parallel"] == (None, True)
    assert space.allows({"one.data_parallel_size": 2, "one.replicas": 2, "one.tensor_parallel_size": 1})
    assert not space.allows({"one.data_parallel_size": 4, "one.replicas": 2, "one.tensor_parallel_size": 1})
    roles = default_fleet_space(make_scenario(fleet=read_fleet({"pools": ROLES["pools"]}), **experts), gpus=4).knobs
    assert roles["prompts.data_parallel_size"] == roles["answers.data_parallel_size"] == (None, 2, 4)
    fleet = read_fleet({"pools": [{"name": "one"}], "faults": [{"replica": 0, "at_s": 1.0}]})
    assert not any(
        "data_parallel" in name for name in default_fleet_space(make_scenario(fleet=fleet, **experts), gpus=4).knobs
    )


@pytest.mark.parametrize(
    ("fleet", "changes", "sentence"),
    [
        (ROLES, {"space": {"prompt.replicas": (1,)}}, "the fleet has no pool 'prompt', but prompts, answers. Did you"),
        (
            ROLES,
            {"space": {"prompts.replica": (1,)}},
            "a pool has replicas, a policy to autoscale and vLLM's engine arguments. Did you mean repl",
        ),
        (ROLES, {"router": "random"}, "fleet has a router, 'round_robin', and 'random' is asked for"),
        (ROLES, {"scorer": "analytic"}, "--scorer analytic has formulas for one deployment"),
        ({"pools": ROLES["pools"][:1]}, {}, "but none has the role decode; add one."),
        ({"pools": [{"engine": {"max_seqs": 1}}]}, {}, "fleet: pool 0: `engine.max_seqs` is no engine argument."),
        ("nowhere.yaml", {}, "nowhere.yaml"),
        ({"kv_store": {}}, {"kv_store": "capacity_gib=1"}, "kv_store is asked for, and the fleet file says how KV is"),
        ({}, {"kv_store": "capacity_gib=1", "kv_pull": "via=gpu"}, "kv_store and kv_pull are simulated one at a time"),
        (None, {"kv_store": "capacity_gb=1"}, "kv_store has no option 'capacity_gb'"),
        (ROLES, {"kv_pull": "via=gpu", "router": None}, "kv_pull is simulated for replicas that serve requests whole"),
    ],
)
def test_bad_questions_are_refused(fleet: Any, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(sim.SimError) as refused:
        answer(fleet, **changes)
    assert sentence in str(refused.value)


def test_a_fleet_that_never_fits_says_why() -> None:
    """Too many GPUs at the least; a pool that has no room for its cache in any candidate; one that is too short for the trace."""
    over = make_scenario(fleet=read_fleet(ROLES)).blueprint
    with pytest.raises(DoesNotFitError, match="has 2 GPUs at least, more than the 1 that gpus allows"):
        answer(space=Space(RATIO, gpus=1, over=over))
    with pytest.raises(DoesNotFitError, match=r"none of 1 candidates .* fleet: answers: .* does not start"):
        answer(space={"answers.max_model_len": (100_000,), "answers.gpu_memory_utilization": (0.25,)})
    with pytest.raises(DoesNotFitError, match="max_model_len=64 is too short"):
        answer(space={"answers.max_model_len": (64,)})


@pytest.mark.parametrize("knob", ["web.autoscale", "autoscale"])
def test_policies_are_knobs(knob: str) -> None:
    """Two replicas cost twice one; what is chosen stands in the file to run, and is told apart from what is not."""
    values = (None, "schedule:times=5", "hpa:min=2,max=2")
    fleet = {"start_up": 0, "pools": [{"name": "web"}]}
    with pytest.raises(ConfigError, match="times must be a list"):
        answer(fleet, objective="cost", space={knob: values})
    found = answer(fleet, objective="cost", space={knob: (None, "hpa:min=2,max=2", "hpa:min=3,max=3")})
    costs = {row["knobs"].get(knob): row["metrics"]["mean_replicas"] for row in found["finalists"]}
    assert costs == {None: 1.0, "hpa:min=2,max=2": 2.0, "hpa:min=3,max=3": 3.0}
    assert found["best"]["knobs"] == {}
    assert found["best"]["fleet"]["pools"][0].get("autoscale") is None


def test_the_objective_takes_knobs_of_pools() -> None:
    """And refuses those that are not there."""
    score = objective(model(), gpu(), make_trace(20), objective="cost", fleet=MIXED, step_time_model=STEPS)
    assert score({"small.replicas": 2})["num_gpus"] == 3
    assert score({"small.replicas": 2, "large.replicas": 0})["num_gpus"] == 2
    with pytest.raises(ConfigError, match="no pool 'tiny'"):
        score({"tiny.replicas": 2})


def test_a_fleet_under_a_policy_is_replayed_with_it() -> None:
    """Its arguments are searched, and it pays for the replicas that the policy holds: two, though one is asked for."""
    scaled = {
        "autoscale": {"policy": "schedule", "times": [[0, 2]], "max": 2},
        "start_up": 0,
        "pools": [{"name": "web"}],
    }
    found = answer(scaled, objective="cost", space={"web.max_num_seqs": (4, 16)})
    metrics = found["best"]["metrics"]
    assert metrics["mean_replicas"] == pytest.approx(2.0)
    assert metrics["gpu_hours"] == pytest.approx(2 * metrics["duration"] / 3600)
    assert found["best"]["fleet"]["autoscale"] == scaled["autoscale"]
