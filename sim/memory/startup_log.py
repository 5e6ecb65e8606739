"""Reading what vLLM logs at start-up: what it was asked to run, and the memory it found and took.

Wordings of vLLM 0.6 to 0.33. Of several workers' lines the first counts, of the room for the KV cache the least.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.errors import ConfigError
from sim.specs.engine import EngineConfig
from sim.units import MIB

GIB_FIGURES: Mapping[str, tuple[str, ...]] = {
    "total": (r"Free memory on device \([\d.]+/([\d.]+) ?GiB\)", r"total_gpu_memory \(([\d.]+)GiB\)"),
    "weights": (
        r"Model loading took ([\d.]+) ?GiB",
        r"Loading model weights took ([\d.]+) GB",
        r"weights memory: ([\d.]+) ?GiB",
    ),
    "activations": (
        r"([\d.]+) ?GiB for peak activation",
        r"torch peak memory increase: ([\d.]+) ?GiB",
        r"PyTorch activation peak memory takes ([\d.]+)GiB",
    ),
    "non-torch": (
        r"(-?[\d.]+) ?GiB for non-torch memory",
        r"non-torch forward increase memory: (-?[\d.]+) ?GiB",
        r"non_torch_memory takes (-?[\d.]+)GiB",
    ),
    "CUDA graphs, estimate": (r"Estimated CUDA graph memory: ([\d.]+) GiB",),
    "available for the KV cache": (
        r"Available KV cache memory: (-?[\d.]+) ?GiB",
        r"the rest of the memory reserved for KV Cache is (-?[\d.]+)GiB",
    ),
    "CUDA graphs taken": (r"Graph capturing finished in [\d.]+ secs?, took (-?[\d.]+) GiB",),
}
COUNTS: Mapping[str, tuple[str, ...]] = {
    "KV cache tokens": (r"GPU KV cache size: ([\d,]+) tokens",),
    "KV blocks": (r"# (?:GPU|CUDA) blocks: (\d+)",),
    "maximum concurrency": (r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x",),
}
LEAST = {"available for the KV cache", "KV cache tokens", "KV blocks", "maximum concurrency"}

MAX_LOG_BYTES = 16 * MIB  # the start-up is at the beginning of a log
_VERSIONS = (r"LLM engine \(v(\d[\w.]*)\)", r"API server version (\d[\w.]*)", r"█ +version (\d[\w.]*)")
_NON_DEFAULT = re.compile(r"non-default args: (\{.*\})")
_PLAIN_ENTRY = re.compile(r"'(\w+)': ('[^']*'|True|False|None|-?\d+(?:\.\d+)?|\[[\d, ]+\])")
_BUDGET = re.compile(r"max_num_batched_tokens=(\d+)")
_PROFILED = re.compile(r"PIECEWISE=\d+ \(largest=(\d+)\), FULL=\d+ \(largest=(\d+)\)")
_ENGINE = re.compile(r"LLM engine \(v[^)]*\) with config: (.*)")
_ENGINE_FIELDS: Mapping[str, tuple[str, str, Callable[[str], Any]]] = {
    "max_model_len": ("max_seq_len", r"(\d+)", int),
    "tensor_parallel_size": ("tensor_parallel_size", r"(\d+)", int),
    "pipeline_parallel_size": ("pipeline_parallel_size", r"(\d+)", int),
    "enforce_eager": ("enforce_eager", r"(True|False)", lambda text: text == "True"),
    "kv_cache_dtype": ("kv_cache_dtype", r"(\w+)", str),
    "enable_prefix_caching": ("enable_prefix_caching", r"(True|False)", lambda text: text == "True"),
    "cudagraph_mode": ("'cudagraph_mode'", r"<CUDAGraphMode\.(\w+)", str),
    "cudagraph_capture_sizes": ("'cudagraph_capture_sizes'", r"(\[[\d, ]+\])", ast.literal_eval),
}
_MATTER = (
    "speculative_config",
    "data_parallel_size",
    "kv_transfer_config",
    "hf_overrides",
)
_ASSIGNMENT = r"{}(?:=|: )'?{}"


@dataclass(frozen=True, slots=True)
class StartupLog:
    """What the log states. `reported` is in GiB for memory; `arguments` are engine arguments, `left_out` names others that matter."""

    vllm_version: str | None
    model: str | None
    engine: EngineConfig
    reported: Mapping[str, float]
    loads_prediction_layers: bool
    left_out: tuple[str, ...]


def read_startup_log(path: Path) -> StartupLog:
    """The first server started in that file. Raises ConfigError where it cannot be read or reports no memory at all."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_LOG_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}).") from None
    if b"\0" in data:
        raise ConfigError(f"{path}: must be the text that `vllm serve` prints, got binary content.")
    text = data.decode(errors="replace")
    reported = _reported(text)
    if not reported:
        raise ConfigError(
            f"{path}: reports no memory; give what `vllm serve` prints, with lines such as `Available KV cache memory`."
        )
    given, line = _non_default(text), _first(_ENGINE, text) or ""
    model = given.get("model") or given.get("model_tag") or _first(re.compile(r"\bmodel='([^']+)'"), line)
    has_mtp = "mtp" in str((given.get("speculative_config") or given).get("method"))
    return StartupLog(
        vllm_version=next((found for pattern in _VERSIONS if (found := _first(re.compile(pattern), text))), None),
        model=model,
        engine=EngineConfig(**_arguments(text, given, line)),
        reported=reported,
        loads_prediction_layers=has_mtp,
        left_out=tuple(name for name in _left_out(text, given) if not (has_mtp and name == "speculative_config")),
    )


def _left_out(text: str, given: Mapping[str, Any]) -> Iterator[str]:
    """Arguments that change memory and that the plan does not model."""
    written = _first(_NON_DEFAULT, text) or ""
    yield from (name for name in _MATTER if f"'{name}': " in written and given.get(name, True))


def _reported(text: str) -> dict[str, float]:
    figures = {}
    for name, patterns in {**GIB_FIGURES, **COUNTS}.items():
        found = next((values for pattern in patterns if (values := re.findall(pattern, text))), [])
        if found:
            numbers = [float(value.replace(",", "")) for value in found]
            figures[name] = min(numbers) if name in LEAST else numbers[0]
    return figures


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None


def _non_default(text: str) -> dict[str, Any]:
    """The dictionary after `non-default args:`; where it holds what is no literal, its plain entries at any depth."""
    written = _first(_NON_DEFAULT, text) or "{}"
    try:
        return dict(ast.literal_eval(written))
    except (SyntaxError, ValueError):
        return {name: ast.literal_eval(value) for name, value in _PLAIN_ENTRY.findall(written)}


def _arguments(text: str, given: Mapping[str, Any], engine_line: str) -> dict[str, Any]:
    """Engine arguments as vLLM resolved them; those given say what the engine's own line leaves out."""
    arguments: dict[str, Any] = {}
    for name, (key, pattern, read) in _ENGINE_FIELDS.items():
        if found := re.search(_ASSIGNMENT.format(key, pattern), engine_line):
            arguments[name] = read(found[1])
    if budget := _first(_BUDGET, text):
        arguments["max_num_batched_tokens"] = int(budget)
    if (profiled := _PROFILED.search(text)) and int(profiled[2]) < int(profiled[1]):
        arguments["max_num_seqs"] = int(profiled[2])  # full graphs end there, piecewise ones do not
    arguments |= {name: value for name, value in given.items() if name in EngineConfig.__dataclass_fields__ and value}
    if arguments.get("enforce_eager"):
        arguments = {name: value for name, value in arguments.items() if not name.startswith("cudagraph_")}
    return arguments
