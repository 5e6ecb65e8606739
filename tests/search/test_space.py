"""Search spaces: what is in them, and what is refused."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import SimError
from sim.search.analytic.default_space import default_space
from sim.search.analytic.workload_profile import WorkloadProfile
from sim.search.blueprint import Blueprint, engine_config
from sim.search.relevance import irrelevant_knobs
from sim.search.space import Condition, Space
from sim.search.space_file import read_space
from sim.specs.engine import EngineConfig
from sim.specs.hardware import load_gpu
from tests.search.makers import make_scenario, make_trace

SPACE = """
knobs:
  max_num_seqs: {from: 64, to: 1024, factor: 2}
  gpu_memory_utilization: {from: 0.8, to: 0.95, step: 0.05}
  cudagraph_capture_sizes: [null, [1, 2, 4]]
  enforce_eager: [false, true]
conditions:
  - when: {enforce_eager: true}
    only: {cudagraph_capture_sizes: null}
"""
BAD_FILES = {
    "knobs: {max_num_sqs: [1]}": "Did you mean max_num_seqs",
    "knobs: {max_num_seqs: []}": "at least one value",
    "knobs: {max_num_seqs: [0]}": "at least 1, got 0",
    "knobs: {max_num_seqs: [8, 8]}": "each value once",
    "knobs: {replicas: [0]}": "replicas must be an integer",
    "knobs: {speculative_config: [ngram]}": "no knob",
    "knobs: {quantization: [8]}": "must be a name such as fp8, got 8",
    "knobs: {max_num_seqs: {from: 8, to: 4, factor: 2}}": "end at or above",
    "knobs: {max_num_seqs: {from: 8, to: 64}}": "either a step or a factor",
    "knobs: {max_num_seqs: {from: 8, to: 64, step: -1}}": "step above 0",
    "knobs: {max_num_seqs: {from: 1, to: 100000, step: 1}}": "at most 1000 values",
    "knobs: {kv_cache_dtype: [fp9]}": "Did you mean fp8",
    "knobs: {max_num_seqs: [8]}\ncondition: []": "Did you mean conditions",
    "knobs: {max_num_seqs: [8]}\nconditions: [{when: {block_size: 16}, only: {max_num_seqs: 8}}]": "no knob of the space",
    "knobs: {max_num_seqs: [8]}\ngpus: 0": "at least 1, got 0",
    "max_num_sqs: [1]": "Did you mean max_num_seqs",
    "knobs: [": "not valid YAML",
}


def write(folder: Path, text: str) -> Path:
    path = folder / "space.yaml"
    path.write_text(text)
    return path


def test_a_file_gives_lists_ranges_and_conditions(tmp_path: Path) -> None:
    """A factor and a step include both ends; a condition takes combinations out: 80 less 20."""
    space = read_space(write(tmp_path, SPACE))
    assert space.knobs["max_num_seqs"] == (64, 128, 256, 512, 1024)
    assert space.knobs["gpu_memory_utilization"] == (0.8, 0.85, 0.9, 0.95)
    assert space.knobs["cudagraph_capture_sizes"] == (None, (1, 2, 4))
    assert (space.size, len(list(space.candidates()))) == (80, 60)


def test_knobs_alone_need_no_heading(tmp_path: Path) -> None:
    """The same space with and without `knobs:`."""
    assert read_space(write(tmp_path, "max_num_seqs: [8, 16]")) == read_space(
        write(tmp_path, "knobs: {max_num_seqs: [8, 16]}")
    )


@pytest.mark.parametrize(("text", "said"), BAD_FILES.items(), ids=BAD_FILES)
def test_a_bad_file_is_one_sentence_with_its_name(text: str, said: str, tmp_path: Path) -> None:
    """It names the file and the rule."""
    path = write(tmp_path, text)
    with pytest.raises(SimError) as raised:
        read_space(path)
    assert str(path) in str(raised.value)
    assert said in str(raised.value)


def test_gpus_limit_replicas_times_tensor_parallel() -> None:
    """With four GPUs, two ranks leave room for two replicas."""
    space = Space({"tensor_parallel_size": (1, 2, 4), "replicas": (1, 2, 4)}, gpus=4)
    layouts = [(params["tensor_parallel_size"], params["replicas"]) for params in space.candidates()]
    assert layouts == [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)]


@given(st.sets(st.integers(1, 64), min_size=1, max_size=5), st.sets(st.integers(1, 64), min_size=1, max_size=5))
def test_a_condition_only_takes_away(seqs: set[int], tokens: set[int]) -> None:
    """Candidates under a condition are a part of those without, and each that is missing breaks it."""
    knobs = {"max_num_seqs": tuple(sorted(seqs)), "max_num_batched_tokens": tuple(sorted(tokens))}
    first, least = min(seqs), min(tokens)
    condition = Condition({"max_num_seqs": (first,)}, {"max_num_batched_tokens": (least,)})
    free, bound = list(Space(knobs).candidates()), list(Space(knobs, (condition,)).candidates())
    missing = [params for params in free if params not in bound]
    assert all(params in free for params in bound)
    assert all(params["max_num_seqs"] == first and params["max_num_batched_tokens"] != least for params in missing)


def test_none_leaves_an_argument_to_vllm() -> None:
    """Also where the engine's own default is no None."""
    assert engine_config(EngineConfig(), {"kv_cache_dtype": None, "replicas": 2}) == EngineConfig()


def test_knobs_that_cannot_matter_are_named_with_the_reason() -> None:
    """Neither prefixes nor priorities in the trace; a knob that this version does not have."""
    knobs = {
        "enable_prefix_caching": (True, False),
        "scheduling_policy": ("fcfs", "priority"),
        "watermark": (0.0, 0.1),
        "long_prefill_token_threshold": (0, 100_000),
        "max_num_seqs": (8, 16),
    }
    fixed = irrelevant_knobs(Space(knobs), make_trace(), "0.15.1")
    assert set(fixed) == {"enable_prefix_caching", "scheduling_policy", "watermark", "long_prefill_token_threshold"}
    assert "0.15.1" in fixed["watermark"]
    assert set(Space(knobs).without(fixed).knobs) == {"max_num_seqs"}


def test_a_policy_says_by_what_it_tells_requests_apart() -> None:
    """Priorities that differ make it matter; where first come, first served is all there is, nothing is decided."""
    both, trace = Space({"scheduling_policy": ("fcfs", "priority")}), make_trace(4)
    ranked = replace(trace, priority=np.array([0, 0, 0, 1]))
    assert irrelevant_knobs(both, trace, None) == {
        "scheduling_policy": "all requests of the trace have the same priority"
    }
    assert irrelevant_knobs(both, ranked, None) == {}
    assert irrelevant_knobs(Space({"scheduling_policy": ("fcfs", None)}), trace, None) == {}


def test_a_knob_that_a_version_ignores_is_not_searched() -> None:
    """vLLM 0.11.0 splits prompts whatever it is told, 0.11.1 obeys."""
    space = Space({"enable_chunked_prefill": (True, False)})
    assert "whatever is asked for" in irrelevant_knobs(space, make_trace(), "0.11.0")["enable_chunked_prefill"]
    assert irrelevant_knobs(space, make_trace(), "0.11.1") == {}


def test_a_number_of_replicas_has_a_limit() -> None:
    """Beyond what is simulated: a sentence, and no search."""
    assert Space({"replicas": (1, 512)}).size == 2
    with pytest.raises(SimError, match=r"replicas must be an integer from 1 to 512, got 1000000"):
        Space({"replicas": (1, 1_000_000)})


@pytest.mark.parametrize(
    ("gpus", "num_replicas", "ranks"),
    [(6, 6, (1, 2, 4)), (40, 21, (1, 2, 4, 8, 16, 32)), (4096, 28, (1, 2, 4, 8, 16, 32))],
)
def test_gpus_are_laid_out_by_steps_that_grow(gpus: int, num_replicas: int, ranks: tuple[int, ...]) -> None:
    """Each number of replicas to sixteen, then four to a doubling, as many as there are GPUs; ranks share the heads."""
    scenario = make_scenario(make_trace(500))
    knobs = default_space(scenario, WorkloadProfile.create_synthetic("chatbot"), gpus=gpus).knobs
    assert knobs["tensor_parallel_size"] == ranks
    assert len(knobs["replicas"]) == num_replicas
    assert knobs["replicas"][:6] == (1, 2, 3, 4, 5, 6)
    assert knobs["replicas"][-1] == min(gpus, 128)


@pytest.mark.parametrize(
    ("gpu", "gpus", "stages"),
    [
        ("h100-sxm", 8, None),
        ("h100-sxm", 16, (1, 2, 4, 8, 16)),
        ("l4", 4, (1, 2, 4)),
        ("l4", 1, None),
        ("gb200", 64, None),
    ],
)
def test_stages_are_laid_out_where_gpus_are_beyond_the_link(
    gpu: str, gpus: int, stages: tuple[int, ...] | None
) -> None:
    """Among those that NVLink joins ranks are faster, and nothing is tried but ranks and replicas."""
    scenario = make_scenario(make_trace(50), gpu=load_gpu(gpu))
    space = default_space(scenario, WorkloadProfile.create_synthetic("chatbot"), gpus=gpus)
    assert space.knobs.get("pipeline_parallel_size") == stages
    assert set(space.layout) >= ({"pipeline_parallel_size"} if stages else set())


def test_ranks_stages_and_replicas_share_the_gpus() -> None:
    """Of four GPUs: the product of the three is at most four."""
    knobs = dict.fromkeys(("tensor_parallel_size", "pipeline_parallel_size", "replicas"), (1, 2, 4))
    found = [tuple(params.values()) for params in Space(knobs, gpus=4).candidates()]
    assert (2, 2, 1) in found
    assert (4, 1, 1) in found
    assert all(math.prod(layout) <= 4 for layout in found)
    assert len(found) == 10


def test_routers_are_a_knob(tmp_path: Path) -> None:
    """With options as text; they are no engine argument, and a single replica needs none."""
    text = "{replicas: [1, 2], router: [least_loaded, 'llm_d:queue=2,prefix=5']}"
    space = read_space(write(tmp_path, text))
    assert space.knobs["router"] == ("least_loaded", "llm_d:queue=2,prefix=5")
    assert engine_config(EngineConfig(), {"replicas": 2, "router": "random", "max_num_seqs": 8}) == EngineConfig(
        max_num_seqs=8
    )
    assert irrelevant_knobs(space, make_trace(), None) == {}
    alone = Space({"router": ("random", "round_robin")})
    assert irrelevant_knobs(alone, make_trace(), None) == {"router": "a single replica needs no router"}
    ranks = EngineConfig(data_parallel_size=8, data_parallel_external_lb=True)
    nodes = EngineConfig(data_parallel_size=8, data_parallel_hybrid_lb=True, data_parallel_size_local=4)
    for engine in (ranks, nodes):
        assert irrelevant_knobs(Space(alone.knobs, over=Blueprint(engine)), make_trace(), None) == {}
    for knob, sentence in {"[lmd]": "Did you mean llm_d", "['llm_d:x=1']": "no option 'x'", "[2]": "got 2"}.items():
        with pytest.raises(SimError, match=sentence):
            read_space(write(tmp_path, f"{{router: {knob}}}"))
