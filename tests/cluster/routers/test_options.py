"""How routers are asked for."""

import pytest

from sim.cluster.routers.least_loaded import PromptLengthOptions
from sim.cluster.routers.table import ROUTERS, router_options
from sim.cluster.routers.vllm_dp import VllmDataParallelOptions
from sim.errors import ConfigError
from tests.cluster.routers.makers import Requests, Shown, prompts


@pytest.mark.parametrize("name", ROUTERS)
def test_a_name_is_enough(name: str) -> None:
    """And it chooses one of the replicas."""
    assert router_options(name) == router_options({"policy": name})
    trace = prompts(((1, 40),), ((1, 40), (2, 8000)), ((3, 5),), session_id=("a", "a", ""))
    assert all(chosen in range(4) for chosen in Requests(name, trace, [Shown() for _ in range(4)]).all())


def test_options_stand_behind_a_colon_or_in_a_mapping() -> None:
    asked = router_options("vllm_dp:api_servers=2, interval_s=1")
    assert (
        asked
        == router_options({"policy": "vllm_dp", "api_servers": 2, "interval_s": 1})
        == VllmDataParallelOptions(2, 1.0)
    )


@pytest.mark.parametrize(
    ("given", "sentence"),
    {
        "lest_loaded": "router must be one of .*, got 'lest_loaded'. Did you mean least_loaded",
        "round_robin:x=1": "router round_robin has no option 'x': it has no options",
        "vllm_dp:api_server=1": "has no option 'api_server': its options are api_servers, interval_s. Did you mean api_servers",
        "vllm_dp:api_servers=0": "router vllm_dp: api_servers must be an integer of at least 1, got 0",
        "vllm_dp:api_servers=1.5": "must be an integer of at least 1, got 1.5",
        "vllm_dp:interval_s=soon": "interval_s must be a number of at least 0.001, got 'soon'",
        "vllm_dp:interval_s=nan": "interval_s must be a number of at least 0.001, got nan",
        "vllm_dp:interval_s": "options of router vllm_dp must be written name=value with commas between, got 'interval_s'",
    }.items(),
)
def test_an_error_names_option_and_rule(given: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        router_options(given)


def test_a_mapping_needs_its_policy() -> None:
    with pytest.raises(ConfigError, match="router must have a `policy`, the name of a router"):
        router_options({"queue": 2})


def test_short_prompts_leave_a_replica_for_long_ones() -> None:
    assert router_options("prompt_length:short=1") == PromptLengthOptions(short=1)
    with pytest.raises(ConfigError, match="short must leave a replica for long prompts, got 2 of 2 replicas"):
        Requests("prompt_length:short=2", prompts(((1, 1),)), [Shown(), Shown()])
