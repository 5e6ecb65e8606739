"""The controls of the page. What they say is text, as in a form and in a URL; nothing is said where one is left empty."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Literal, NamedTuple, get_args

from sim.cluster.front_end import Clock
from sim.cluster.routers.table import ROUTERS
from sim.specs.arguments import Argument
from sim.specs.catalog import read_catalog, short_name
from sim.specs.data import data_dir
from sim.specs.releases import KNOWN_VERSIONS
from sim.specs.serve_flags import ENGINE_FLAGS
from sim.workload.source import bundled_traces

Kind = Literal["text", "number", "choice"]
Given = Mapping[str, str]
"""What controls say, by their names."""

SHOWN_FLAGS = (
    "tensor-parallel-size",
    "max-num-seqs",
    "max-num-batched-tokens",
    "max-model-len",
    "gpu-memory-utilization",
    "enable-prefix-caching",
    "kv-cache-dtype",
    "quantization",
)
"""Flags of vLLM with a control of their own; `flags` takes all."""
SWITCH = ("on", "off")


class Control(NamedTuple):
    """`choices` are all there are of a choice, and suggestions for a text; `stands_for` is what an empty one means."""

    name: str
    label: str
    kind: Kind = "text"
    choices: Sequence[str] = ()
    help: str = ""
    stands_for: str = ""


@cache
def load_controls() -> tuple[Control, ...]:
    """What is sent: the same for both configurations."""
    traces = list(dict.fromkeys(file.stem for file in bundled_traces()))
    return (
        Control("trace", "Trace or workload", choices=traces, help="a file, or one that is bundled, by name"),
        Control("rate", "Requests/s", "number", help="in the trace's own pattern", stands_for="as in the trace"),
        Control("limit", "First requests", "number", stands_for="all"),
        Control("slo", "Limits", help="such as ttft_p99=500ms,tpot_p99=50ms", stands_for="none"),
        Control("clock", "Latencies by whose clock", "choice", get_args(Clock), stands_for="the engine's"),
    )


@cache
def configuration_controls() -> tuple[Control, ...]:
    """What serves it."""
    models = [short_name(entry.name) for entry in read_catalog()]
    gpus = sorted(file.stem for file in data_dir("hardware_profiles").glob("*.yaml"))
    return (
        Control("model", "Model", choices=models, help="a name, a Hugging Face id or a config.json"),
        Control("gpu", "GPU", choices=gpus, help="a name or a profile's YAML"),
        Control("price", "USD per GPU hour", "number", stands_for="the profile's"),
        Control("replicas", "Replicas", "number", stands_for="1"),
        Control("router", "Router", "choice", list(ROUTERS), stands_for="least_loaded"),
        *_flag_controls(),
        Control("vllm-version", "vLLM version", "choice", KNOWN_VERSIONS[::-1], stands_for="newest"),
        Control(
            "flags", "Further flags of vllm serve", help="--block-size 32 --no-async-scheduling", stands_for="none"
        ),
    )


def _flag_controls() -> Iterator[Control]:
    for name in SHOWN_FLAGS:
        argument = ENGINE_FLAGS[name].argument
        kind, choices = _kind(argument)
        yield Control(name, name, kind, choices, argument.help, "vLLM's default")


def _kind(argument: Argument) -> tuple[Kind, Sequence[str]]:
    if argument.kind == "switch":
        return "choice", SWITCH
    if argument.choices:
        return "choice", argument.choices
    return ("number" if argument.kind in {"integer", "number"} else "text"), ()
