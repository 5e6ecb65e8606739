"""What controls ask for: the same from a URL, from flags and from a command line."""

import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.errors import ConfigError
from sim.web.controls import configuration_controls, load_controls
from sim.web.what_if import WhatIf, engine_controls, simulate_arguments, simulate_command

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1).map(str.strip).filter(bool)
LOADS = st.fixed_dictionaries({}, optional={control.name: WORDS for control in load_controls()})
CONFIGURATIONS = st.fixed_dictionaries({}, optional={control.name: WORDS for control in configuration_controls()})
LOAD = {"trace": "chat", "limit": "20"}
ONE = {"model": "Llama-3.1-8B", "gpu": "h100-sxm"}


@given(LOADS, CONFIGURATIONS, st.none() | CONFIGURATIONS)
def test_an_address_says_all(load: dict[str, str], first: dict[str, str], second: dict[str, str] | None) -> None:
    """Whatever is said is read back from the query of the address."""
    from urllib.parse import parse_qsl

    what_if = WhatIf(load, first, second)
    assert WhatIf.of_query(dict(parse_qsl(what_if.to_query(), keep_blank_values=True))) == what_if


def test_controls_are_arguments() -> None:
    """Each control is the argument of `simulate` that its flag is; further flags win over controls."""
    load = {"trace": "chat", "rate": "2.5", "limit": "100", "slo": "ttft_p99=500ms, tpot_p99=50ms", "clock": "client"}
    asked = ONE | {
        "price": "2",
        "replicas": "3",
        "router": "round_robin",
        "max-num-seqs": "64",
        "enable-prefix-caching": "off",
        "kv-cache-dtype": "fp8",
        "vllm-version": "0.20.0",
        "flags": "--block-size 32 --max-num-seqs 8",
    }
    found = simulate_arguments(load, asked)
    assert found.pop("gpu").price_usd_per_hour == 2
    assert found == {
        "model": "Llama-3.1-8B",
        "trace": "chat",
        "engine": sim.EngineConfig(max_num_seqs=8, enable_prefix_caching=False, kv_cache_dtype="fp8", block_size=32),
        "vllm_version": "0.20.0",
        "replicas": 3,
        "router": "round_robin",
        "request_rate": 2.5,
        "limit": 100,
        "slo": ("ttft_p99=500ms", "tpot_p99=50ms"),
        "clock": "client",
    }


@pytest.mark.parametrize(
    "engine",
    [
        sim.EngineConfig(),
        sim.EngineConfig(max_num_seqs=64, enable_prefix_caching=False, enable_chunked_prefill=True),
        sim.EngineConfig(tensor_parallel_size=2, quantization="fp8", cudagraph_capture_sizes=(1, 2, 4)),
        sim.EngineConfig(gpu_memory_utilization=0.5, max_model_len="auto", batching="static"),
    ],
)
def test_arguments_are_controls(engine: sim.EngineConfig) -> None:
    """A page that begins with flags asks for just these."""
    assert simulate_arguments(LOAD, ONE | engine_controls(engine))["engine"] == engine


def test_the_command_line_asks_for_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    """The `servecast simulate` line of the page gives the page's figures."""
    import json

    from sim.cli import run

    asked = ONE | {"max-num-seqs": "4", "enable-prefix-caching": "off", "flags": "--block-size 32"}
    load = LOAD | {"rate": "50", "clock": "client"}
    line = simulate_command(load, asked)
    assert run([*shlex.split(line)[1:], "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    expected = sim.simulate(**simulate_arguments(load, asked)).summary
    assert printed["clock"] == "client"
    assert {**printed, "wall_time_s": 0} == json.loads(json.dumps({**expected, "wall_time_s": 0}))


@pytest.mark.parametrize(
    ("load", "changed", "said"),
    [
        ({"trace": "chat", "rate": "fast"}, {}, "rate must be a number, got 'fast'; leave it empty for the default"),
        ({"trace": "chat", "limit": "1.5"}, {}, "limit must be a whole number, got '1.5'"),
        ({"trace": "chat"}, {"replicas": "inf"}, "replicas must be a whole number, got 'inf'"),
        ({"trace": "chat"}, {"model": ""}, "a model is missing; choose one"),
        ({}, {}, "a trace is missing; choose one"),
        ({"trace": "chat"}, {"flags": "--max-num-seq 4"}, "--max-num-seq is not a flag of vllm serve"),
        ({"trace": "chat"}, {"flags": "'"}, "the further flags are no line of a shell: No closing quotation"),
    ],
)
def test_what_cannot_be_meant(load: dict[str, str], changed: dict[str, Any], said: str) -> None:
    """One sentence that names the control."""
    with pytest.raises(ConfigError, match=said):
        simulate_arguments(load, ONE | changed)


def test_an_address_of_elsewhere() -> None:
    """A name that no control has is not passed over."""
    with pytest.raises(ConfigError, match=r"asks for 'modl', which no control has\. Did you mean model"):
        WhatIf.of_query({"modl": "x"})
