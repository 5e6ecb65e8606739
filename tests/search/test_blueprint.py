"""What a candidate's knobs make of the engine arguments and the pools that were given."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.errors import ConfigError, SimError
from sim.search.blueprint import Blueprint
from sim.search.relevance import irrelevant_knobs
from sim.search.space import Condition, Space
from sim.search.space_file import read_space
from sim.search.strategies import Distinct, around, layouts
from sim.specs.engine import EngineConfig
from sim.specs.fleet_file import read_fleet
from sim.specs.speculative_config import SpeculativeConfig
from tests.search.makers import make_scenario, make_trace

ROLES = {
    "decider": "always",
    "pools": [
        {"name": "prompts", "role": "prefill", "replicas": 2, "engine": {"max_num_seqs": 8}},
        {"name": "answers", "role": "decode", "engine": {"tensor_parallel_size": 2}},
        {"name": "whole"},
    ],
}


def over(fleet: Any = ROLES, engine: EngineConfig | None = None) -> Blueprint:
    return Blueprint(engine or EngineConfig(), None, read_fleet(fleet))


def engines(blueprint: Blueprint, params: dict[str, Any]) -> list[dict[str, Any]]:
    return [engine.given for engine in blueprint.engines(params)]


def test_a_candidate_is_a_fleet_file_with_its_values_in_place() -> None:
    """Nothing else changes; an argument of None is null, which takes it back to vLLM."""
    made = over().fleet_file(
        {"prompts.max_num_seqs": None, "answers.replicas": 3, "whole.block_size": 32, "router": "llm_d:queue=3"}
    )
    assert made.to_json() == {
        "decider": "always",
        "router": "llm_d:queue=3",
        "pools": [
            {"name": "prompts", "role": "prefill", "replicas": 2, "engine": {"max_num_seqs": None}},
            {"name": "answers", "role": "decode", "replicas": 3, "engine": {"tensor_parallel_size": 2}},
            {"name": "whole", "replicas": 1, "engine": {"block_size": 32}},
        ],
    }
    assert over().fleet_file({}).to_json() == over().fleet_file({"max_num_seqs": 3}).to_json() == ROLES


def test_the_pool_has_the_first_word_on_its_arguments() -> None:
    """Its knob, then what stands in the file, then the knob for all, then what was given for all."""
    blueprint = over(engine=EngineConfig(max_num_seqs=1, block_size=16))
    assert engines(blueprint, {"max_num_seqs": 4, "answers.max_num_seqs": 2}) == [
        {"max_num_seqs": 8, "block_size": 16},
        {"tensor_parallel_size": 2, "max_num_seqs": 2, "block_size": 16},
        {"max_num_seqs": 4, "block_size": 16},
    ]
    assert blueprint.num_flags({"max_num_seqs": 4}) == 7
    assert Blueprint(EngineConfig(max_num_seqs=1)).num_flags({"block_size": 32, "replicas": 2}) == 2


@given(st.data())
def test_gpus_are_those_of_the_fleet_that_is_made(data: st.DataObject) -> None:
    """Counted without making it: replicas times ranks times stages, whoever says how many there are."""
    sizes = dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size"), st.sampled_from([None, 1, 2, 4]))
    knobs: dict[str, st.SearchStrategy[Any]] = dict(sizes)
    for pool in ("prompts", "answers", "whole"):
        knobs |= {f"{pool}.replicas": st.integers(0, 3)} | {f"{pool}.{name}": size for name, size in sizes.items()}
    params = data.draw(st.fixed_dictionaries({}, optional=knobs))
    blueprint = over(engine=EngineConfig(tensor_parallel_size=data.draw(st.sampled_from([1, 4]))))
    if not blueprint.num_replicas(params):
        with pytest.raises(ConfigError, match="no pool has replicas"):
            blueprint.fleet_file(params)
        return
    pools = blueprint.fleet_file(params).pools
    made = zip(pools, blueprint.engines(params), strict=True)
    assert blueprint.num_gpus(params) == sum(pool.replicas * engine.num_gpus for pool, engine in made)
    assert blueprint.num_replicas(params) == sum(pool.replicas for pool in pools)


def test_a_pool_without_replicas_is_left_out() -> None:
    """And with the last of its role what only pools with roles need; pools without names keep their numbers."""
    alone = over().fleet_file({"prompts.replicas": 0, "answers.replicas": 0})
    assert (alone.names, alone.decider) == (["whole"], None)
    assert over().fleet_file({"whole.replicas": 0}).decider == "always"
    assert over({"pools": [{}, {}]}).fleet_file({"pool 0.replicas": 0}).names == ["pool 1"]


@pytest.mark.parametrize(
    ("knob", "value", "sentence"),
    [
        ("promts.replicas", 1, "the fleet has no pool 'promts', but prompts, answers, whole. Did you mean prompts?"),
        (
            "answers.max_num_sqs",
            1,
            "a pool has replicas, a policy to autoscale and vLLM's engine arguments. Did you mean max",
        ),
        ("answers.router", "random", "answers.router is no knob: a pool has replicas"),
        (
            "replicas",
            1,
            "replicas is a knob of each pool: name one, prompts.replicas, answers.replicas, whole.replicas.",
        ),
        ("deciders", "always", "'deciders' is no knob; knobs are POOL.replicas"),
        ("answers.replicas", -1, "answers.replicas must be an integer from 0 to 512, got -1."),
        ("answers.max_num_seqs", 0, "answers.max_num_seqs: max_num_seqs must be an integer of at least 1, got 0"),
        ("decider", "allways", "decider must be one of always, prefix_based, got 'allways'"),
        ("decider", 3, "decider must be text such as prefix_based:non_cached_tokens=512, got 3."),
        ("prefill_router", "llm_d:x=1", "router llm_d has no option 'x'"),
        (
            "autoscale",
            "hpa",
            "autoscale is a knob of each pool: name one, prompts.autoscale, answers.autoscale, whole.",
        ),
        ("whole.autoscale", 3, "whole.autoscale must be text such as hpa, or hpa:target=5,max=4, or null, got 3."),
        ("whole.autoscale", "hpa:target=0", "autoscaler hpa: target must be a number of at least"),
        ("kv_store", 64, "kv_store must be text such as capacity_gib=64, or null, got 64."),
        ("kv_store", "capacity_gib=0", "capacity_gib must be"),
    ],
)
def test_a_knob_that_is_not_there_is_refused(knob: str, value: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Space({knob: (value,)}, over=over())
    assert sentence in str(refused.value)


def test_a_knob_that_nobody_hears_is_refused() -> None:
    """One for all pools where each has its own; one for pools with roles where there are none; what a policy decides."""
    heard = {"max_num_seqs": (1,), "answers.max_num_seqs": (2,)}
    assert Space(heard, over=over()).size == 1
    with pytest.raises(ConfigError, match=r"every pool has its own; search those: prompts\.max_num_seqs, answers"):
        Space({**heard, "whole.max_num_seqs": (3,)}, over=over())
    with pytest.raises(ConfigError, match="the knob decider is for pools of role prefill and decode"):
        Space({"decider": ("always",)}, over=over({"pools": [{}]}))
    with pytest.raises(ConfigError, match=r"web\.replicas: on that the fleet's autoscale decides"):
        Space({"web.replicas": (1,)}, over=over({"autoscale": "hpa", "pools": [{"name": "web"}]}))
    with pytest.raises(ConfigError, match=r"web\.replicas: on that the fleet's autoscale decides"):
        Space({"web.replicas": (1,)}, over=over({"pools": [{"name": "web", "autoscale": "hpa"}, {}]}))
    with pytest.raises(
        ConfigError, match=r"web\.autoscale: the file has it for the whole fleet; name the knob autoscale"
    ):
        Space({"web.autoscale": ("hpa",)}, over=over({"autoscale": "hpa", "pools": [{"name": "web"}]}))
    with pytest.raises(ConfigError, match="gpus limits replicas, and on those the fleet's autoscale decides"):
        Space({"max_num_seqs": (1,)}, gpus=2, over=over({"autoscale": "hpa"}))
    with pytest.raises(ConfigError, match="There are pools with a fleet only"):
        Space({"answers.replicas": (1,)})


def test_gpus_are_counted_with_the_ranks_that_were_given() -> None:
    """Two replicas of two ranks are four GPUs, though no knob says two."""
    space = Space({"replicas": (1, 2, 4)}, gpus=4, over=Blueprint(EngineConfig(tensor_parallel_size=2)))
    assert [params["replicas"] for params in space.candidates()] == [1, 2]
    fleet = Space({"prompts.replicas": (1, 2), "answers.replicas": (0, 1, 2)}, gpus=5, over=over())
    assert [tuple(params.values()) for params in fleet.candidates()] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert fleet.least_gpus == 2


def test_a_file_is_read_over_the_fleet(tmp_path: Path) -> None:
    """Knobs of pools in ranges and conditions; errors name the file."""
    path = tmp_path / "space.yaml"
    path.write_text(
        "knobs: {answers.replicas: {from: 1, to: 4, factor: 2}, router: [random, 'llm_d:queue=3']}\n"
        "conditions: [{when: {answers.replicas: 1}, only: {router: random}}]"
    )
    space = read_space(path, over())
    assert (space.knobs["answers.replicas"], len(list(space.candidates()))) == ((1, 2, 4), 5)
    assert space.conditions == (Condition({"answers.replicas": (1,)}, {"router": ("random",)}),)
    with pytest.raises(SimError, match=r"space\.yaml: 'answers\.replicas' is no knob"):
        read_space(path)


def test_knobs_of_pools_that_cannot_matter_are_named() -> None:
    """As those of a lone deployment are; a router matters where replicas that answer can be several."""
    knobs: dict[str, tuple[Any, ...]] = {
        "answers.enable_prefix_caching": (True, False),
        "whole.max_num_seqs": (64, 128),
        "prompts.max_num_seqs": (8, 128),
        "prefill_router": ("random", "round_robin"),
        "router": ("random", "round_robin"),
    }
    space = Space(knobs, over=over())
    assert irrelevant_knobs(space, make_trace(), None) == {
        "answers.enable_prefix_caching": "no prompts of the trace share a prefix",
        "whole.max_num_seqs": "the trace has only 60 requests",
    }
    few = Space({**knobs, "prompts.replicas": (1,), "whole.replicas": (0,)}, over=over())
    assert {"prefill_router", "router"} < irrelevant_knobs(few, make_trace(), None).keys()
    lone = Space({"prefill_router": ("random",), "prompts.replicas": (1,)}, over=over())
    assert irrelevant_knobs(lone, make_trace(), None).keys() == {"prefill_router"}
    shared = {"kv_store": (None, "capacity_gib=64"), "kv_pull": (None, "via=gpu")}
    assert irrelevant_knobs(Space(shared, over=over({})), make_trace(), None) == {
        "kv_store": "no prompts of the trace share a prefix",
        "kv_pull": "no prompts of the trace share a prefix",
    }
    turns = sim.read_trace("multi-turn", limit=20)
    assert irrelevant_knobs(Space(shared, over=over({})), turns, None) == {
        "kv_pull": "a single replica has no other to pull from"
    }
    scaled = over({"autoscale": "hpa"})
    assert irrelevant_knobs(Space({"router": ("random",)}, over=scaled), make_trace(), None) == {}


def test_fleets_that_do_the_same_are_tried_once() -> None:
    """A longer context changes nothing; a replica more does, in either pool, and a router where there are two to choose from."""
    scenario = make_scenario(fleet=read_fleet({"pools": [{"name": "a"}, {"name": "b"}]}), router=None)
    knobs = {"a.replicas": (0, 1, 2), "b.replicas": (0, 1, 2), "router": ("random", "round_robin")}
    space = Space({**knobs, "a.max_model_len": (1024, 2048)}, over=scenario.blueprint)
    found = Distinct(scenario).simplest(space.candidates(), 14)
    assert found is not None
    assert len(found) == 2 + 2 * 6
    assert {params["a.max_model_len"] for params in found} == {1024}
    assert Distinct(scenario).simplest(space.candidates(), 13) is None


def test_what_replicas_share_is_a_difference() -> None:
    """Fleets with stores of unlike sizes are unlike; two spellings of a size are one."""
    scenario = make_scenario(fleet=read_fleet({"pools": [{"name": "a", "replicas": 2}]}), router=None)
    space = Space(
        {"kv_store": (None, "capacity_gib=8", "capacity_gib=16", "capacity_gib=16.0")}, over=scenario.blueprint
    )
    found = Distinct(scenario).simplest(space.candidates())
    assert [params["kv_store"] for params in found or ()] == [None, "capacity_gib=8", "capacity_gib=16"]


def test_layouts_of_pools_are_tried_by_their_gpus() -> None:
    """Each once, fewest GPUs first; around a winner of many knobs those a step away, with one or two pools changed."""
    counts = {"prompts.replicas": (1, 2, 3), "answers.replicas": (1, 2, 4), "whole.replicas": (0, 1, 2)}
    scenario = make_scenario(fleet=read_fleet(ROLES))
    space = Space({**counts, "max_num_batched_tokens": (512, 1024)}, gpus=6, over=scenario.blueprint)
    found = [tuple(params[name] for name in counts) for params in layouts(scenario, space)]
    assert found[:3] == [(1, 1, 0), (1, 1, 1), (2, 1, 0)]
    assert sorted(found) == sorted({tuple(params[name] for name in counts) for params in space.candidates()})
    winner = {"prompts.replicas": 2, "answers.replicas": 2, "whole.replicas": 0, "max_num_batched_tokens": 512}
    beside = [tuple(params[name] for name in counts) for params in around(winner, space)]
    assert sorted(beside) == [(1, 1, 0), (1, 2, 0), (1, 2, 1), (2, 1, 0), (2, 1, 1), (3, 1, 0)]


DRAFTING = EngineConfig(speculative_config=SpeculativeConfig("eagle3", "M", 3))


def test_drafts_are_a_knob_and_none_is_one_of_its_values() -> None:
    """With the method that was given; of a fleet, for all pools."""
    for blueprint in (Blueprint(DRAFTING), over({"pools": [{}]}, DRAFTING)):
        off, one = (blueprint.engines({"num_speculative_tokens": count})[0] for count in (0, 1))
        assert off == EngineConfig()
        assert one == EngineConfig(speculative_config=SpeculativeConfig("eagle3", "M", 1))
        assert blueprint.engines({})[0] == DRAFTING


def test_drafts_are_searched_where_something_drafts() -> None:
    """And in whole numbers."""
    Space({"num_speculative_tokens": (0, 1, 3)}, over=Blueprint(DRAFTING))
    with pytest.raises(ConfigError, match="needs a speculative_config, which says how to draft"):
        Space({"num_speculative_tokens": (0, 1)})
    with pytest.raises(ConfigError, match="must be an integer of at least 0, which is none, got -1"):
        Space({"num_speculative_tokens": (-1,)}, over=Blueprint(DRAFTING))
    with pytest.raises(ConfigError, match="'speculative_config' is no knob"):
        Space({"speculative_config": (None,)}, over=Blueprint(DRAFTING))
