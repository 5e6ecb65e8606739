"""Where bad inputs come in: calls of the command line in which one file or one word is left open."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from sim.specs.data import data_dir
from tests.attack import kinds

SMALL = "arrival_s,prompt_tokens,output_tokens\n0,30,3\n1,20,2\n"
LINEAR = "{kind: linear, base_s: 0.01, per_token_s: 0.0, per_context_token_s: 0.0}"
SIMULATE = "simulate tiny --gpu h100-sxm --trace small.csv --max-model-len 64 --num-gpu-blocks-override 64"
OPTIMIZE = (
    "optimize tiny --gpu h100-sxm --trace small.csv --trials 2 --workers 1 --step-time-model linear.yaml "
    "--max-model-len 64 --num-gpu-blocks-override 64"
)
CAPACITY = (
    "capacity tiny --gpu h100-sxm --trace small.csv --slo ttft_p99=1s --step-time-model linear.yaml "
    "--max-model-len 64 --num-gpu-blocks-override 64"
)
MEMORY = "memory tiny --gpu h100-sxm --max-model-len 64"
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
}
RUN: dict[str, Any] = {
    "id": "a",
    "engine_version": "vllm 0.20.0",
    "model": "tiny",
    "gpu": "h100-sxm",
    "engine": {"max_num_seqs": 4, "num_gpu_blocks_override": 64},
    "workload": {
        "kind": "closed_loop",
        "concurrency": 2,
        "num_requests": 4,
        "prompt_tokens": {"uniform": [10, 20]},
        "output_tokens": {"uniform": [2, 4]},
    },
    "clock": "client",
    "measured": [{"stage": None, "ttft_ms": {"mean": 10.0}, "tpot_ms": {"mean": 5.0}}],
}
RUNS = {"format": 1, "runs": [RUN]}
BENCH = {
    "num_prompts": 2,
    "request_rate": "inf",
    "max_concurrency": 2,
    "start_times": [1.0, 2.0],
    "input_lens": [10, 20],
    "output_lens": [3, 4],
    "ttfts": [0.1, 0.2],
    "itls": [[0.1, 0.1], [0.1, 0.1, 0.1]],
    "duration": 3.0,
    "mean_ttft_ms": 150.0,
    "output_throughput": 2.0,
}
MOONCAKE = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
NATIVE = {"arrival_s": 0, "prompt_tokens": 20, "output_tokens": 3, "request_id": "a", "hash_ids": [1, 2]}
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,30,3\n"
SPACE = "{knobs: {max_num_seqs: {from: 8, to: 64, factor: 2}, watermark: {from: 0.1, to: 0.3, step: 0.1}}, gpus: 2}"
FLEET = "{router: {policy: llm_d, queue: 3}, pools: [{replicas: 2}, {name: few, engine: {max_num_seqs: 8}}]}"
CHANGING = (
    "{pools: [{replicas: 2}], autoscale: {policy: hpa, metric: in_flight, target: 1, max: 3}, start_up: 1, "
    "faults: [{at_s: 1, replica: 0, for_s: 1}, {mtbf_s: 5, mttr_s: 1, slow: 2}], "
    "recovery: {backoff_s: 0.1}, admission: {timeout_s: 60}}"
)
SCHEDULE = "{autoscale: {policy: schedule, times: [[0, 1], [1, 2]]}}"
HANDING_OVER = (
    "{pools: [{role: prefill}, {role: decode}], transfer: {bandwidth_gb_s: 50, latency_ms: 1}, "
    "decider: {policy: prefix_based, non_cached_tokens: 4}}"
)
CONFIG = {"max-num-seqs": 8, "gpu-memory-utilization": 0.9, "compilation-config": {"max_cudagraph_capture_size": 8}}


class Attack(NamedTuple):
    """A call and the files that it reads; it is refused, or (`maybe`) may as well be answered."""

    name: str
    call: tuple[str, ...]
    files: Mapping[str, bytes] = {}
    maybe: bool = False
    is_file: bool = False  # the whole file is bad, not one value of it


FLAGS = {
    SIMULATE: "--limit --rate-scale --request-rate --max-num-seqs --max-num-batched-tokens --gpu-memory-utilization "
    "--block-size --watermark -tp --kv-cache-memory-bytes --max-num-active-seqs --long-prefill-token-threshold "
    "--cudagraph-capture-sizes --max-cudagraph-capture-size --max-model-len --num-gpu-blocks-override --vllm-version",
    MEMORY: "--max-model-len --num-kv-buffers -pp",
    "trace generate new.csv -n 3": "-n --rate --arrivals --burstiness --prompt-tokens --output-tokens --prefix-tokens --num-prefixes "
    "--mean-turns --turn-gap-s --hash-block-size --seed",
    "trace slice small.csv new.csv": "--from-s --to-s --limit",
    "trace anonymise small.csv new.csv": "--round-tokens",
    "validate runs.json": "--seed",
}
SEARCH_FLAGS = {
    OPTIMIZE: "--trials --seed --gpus --workers --limit --rate-scale --slo",
    CAPACITY: "--rate --replicas --limit --slo",
}


def prepare(folder: Path) -> None:
    """What calls name: a model, a trace, step times, a loop of links and a folder that may not be entered."""
    (folder / "tiny").mkdir()
    (folder / "tiny/config.json").write_text(json.dumps(TINY))
    (folder / "small.csv").write_text(SMALL)
    (folder / "linear.yaml").write_text(LINEAR)
    (folder / "runs.json").write_text(json.dumps(RUNS))
    (folder / "loop").symlink_to("loop")
    (folder / "closed").mkdir(mode=0o000)


def gpu_file() -> dict[str, Any]:
    """A profile as it stands, for one number of it to be spoilt."""
    values: dict[str, Any] = yaml.safe_load((data_dir("hardware_profiles") / "l4.yaml").read_text())
    return values


def attacks() -> Iterator[Attack]:
    """All of them; names are unique."""
    for made in (_yaml_files, _yaml_values, _json_files, _json_values, _cells, _rows, _words, _paths, _outputs):
        yield from made()


YAML_PLACES: Mapping[str, tuple[str, str]] = {
    "GPU": ("bad.yaml", "memory tiny --gpu bad.yaml"),
    "step times": ("bad.yaml", f"{SIMULATE} --step-time-model bad.yaml"),
    "space": ("bad.yaml", f"{OPTIMIZE} --space bad.yaml"),
    "config": ("bad.yaml", f"{MEMORY} --config bad.yaml"),
    "fleet": ("bad.yaml", f"{SIMULATE} --fleet bad.yaml"),
}


def _yaml_files() -> Iterator[Attack]:
    for place, (file, call) in YAML_PLACES.items():
        for kind, content in kinds.YAML.items():
            yield Attack(f"{place} file: {kind}", tuple(call.split()), {file: content}, is_file=True)


def _yaml_values() -> Iterator[Attack]:
    """A number spoilt in a file that is otherwise sound."""
    sound: Mapping[str, tuple[Any, list[tuple[str | int, ...]]]] = {
        "GPU": (
            gpu_file(),
            [
                ("memory_bandwidth_tb_s", "value"),
                ("num_sms", "value"),
                ("peak_tflops", "bf16", "value"),
                ("operators", "gemm", "bf16", "memory_efficiency"),
                ("operators", "host", "step_us"),
            ],
        ),
        "step times": (yaml.safe_load(LINEAR), [("base_s",), ("per_token_s",)]),
        "space": (
            yaml.safe_load(SPACE),
            [
                ("gpus",),
                ("knobs", "max_num_seqs", "from"),
                ("knobs", "max_num_seqs", "to"),
                ("knobs", "max_num_seqs", "factor"),
                ("knobs", "watermark", "step"),
                ("knobs", "max_num_seqs"),
            ],
        ),
        "fleet": (yaml.safe_load(FLEET), [("pools", 0, "replicas"), ("pools", 1, "engine", "max_num_seqs")]),
        "changing fleet": (
            yaml.safe_load(CHANGING),
            [
                ("pools", 0, "replicas"),
                ("autoscale", "target"),
                ("autoscale", "max"),
                ("start_up",),
                ("faults", 0, "at_s"),
                ("faults", 0, "for_s"),
                ("faults", 1, "mtbf_s"),
                ("faults", 1, "slow"),
                ("recovery", "backoff_s"),
                ("admission", "timeout_s"),
            ],
        ),
        "schedule": (yaml.safe_load(SCHEDULE), [("autoscale", "times"), ("autoscale", "times", 1)]),
        "pools that hand over": (
            yaml.safe_load(HANDING_OVER),
            [
                ("transfer", "bandwidth_gb_s"),
                ("transfer", "latency_ms"),
                ("decider", "non_cached_tokens"),
                ("decider",),
            ],
        ),
        "config": (
            CONFIG,
            [("max-num-seqs",), ("gpu-memory-utilization",), ("compilation-config", "max_cudagraph_capture_size")],
        ),
    }
    for place, (values, fields) in sound.items():
        file, call = YAML_PLACES.get(place, YAML_PLACES["fleet"])
        for field in fields:
            for kind, value in {**kinds.NO_NUMBERS, **kinds.YAML_ONLY, "0": "0"}.items():
                if place == "space" and kind in {"null", "a list"}:
                    continue
                name = f"{place} {'.'.join(map(str, field))}: {kind}"
                yield Attack(name, tuple(call.split()), {file: _spoilt(values, field, value)}, maybe=True)


def _json_files() -> Iterator[Attack]:
    calls = {
        "model": "memory bad.json --gpu h100-sxm",
        "runs": "validate bad.json",
        "calibrate": "calibrate bad.json --gpu h100-sxm --out new.yaml",
        "bench": "validate bad.json --gpu h100-sxm --model tiny",
        "trace": "trace inspect bad.json",
    }
    for place, call in calls.items():
        for kind, content in kinds.JSON.items():
            yield Attack(f"{place} JSON: {kind}", tuple(call.split()), {"bad.json": content})


def _json_values() -> Iterator[Attack]:
    sound: Mapping[str, tuple[Any, list[tuple[str | int, ...]]]] = {
        "memory bad.json --gpu h100-sxm": (TINY, [*((key,) for key in TINY), ("rope_scaling", "factor")]),
        "validate bad.json": (
            RUNS,
            [
                ("format",),
                ("runs",),
                *(("runs", 0, key) for key in RUN),
                ("runs", 0, "engine", "max_num_seqs"),
                ("runs", 0, "workload", "concurrency"),
                ("runs", 0, "workload", "num_requests"),
                ("runs", 0, "workload", "prompt_tokens", "uniform", 1),
                ("runs", 0, "measured", 0, "ttft_ms", "mean"),
            ],
        ),
        "validate bad.json --gpu h100-sxm --model tiny": (BENCH, [*((key,) for key in BENCH), ("input_lens", 0)]),
        "trace inspect bad.json": (BENCH, [*((key,) for key in BENCH), ("start_times", 1), ("output_lens", 1)]),
    }
    for call, (values, fields) in sound.items():
        for field in fields:
            for kind, value in {**kinds.NO_NUMBERS, **kinds.JSON_ONLY, "0": "0"}.items():
                name = f"{call.split()[0]} {'bench' if values is BENCH else ''} {'.'.join(map(str, field))}: {kind}"
                yield Attack(name, tuple(call.split()), {"bad.json": _spoilt(values, field, value)}, maybe=True)


def _cells() -> Iterator[Attack]:
    """One cell of a trace, in each format."""
    rows: Mapping[str, tuple[str, list[str]]] = {
        "CSV": (
            "arrival_s,prompt_tokens,output_tokens,priority,hash_ids,request_id",
            ["0", "20", "3", "1", "1 2", "a"],
        ),
        "Azure": ("TIMESTAMP,ContextTokens,GeneratedTokens", ["2023-11-16 18:15:46.6805900", "30", "3"]),
    }
    stamps = {
        "year 1500": "1500-01-01 00:00:00.0",
        "year 2300": "2300-01-01 00:00:00.0",
        "year 0": "0000-01-01 00:00:00",
    }
    for form, (header, row) in rows.items():
        for at, column in enumerate(header.split(",")):
            for kind, cell in {**kinds.CELLS, **(stamps if column == "TIMESTAMP" else {})}.items():
                line = ",".join([*row[:at], cell, *row[at + 1 :]])
                content = f"{header}\n{line}\n".encode()
                maybe = column == "request_id" or (column == "hash_ids" and kind == "a list")
                maybe |= column == "priority" and kind == "below 0"
                yield Attack(f"{form} {column}: {kind}", ("trace", "inspect", "t.csv"), {"t.csv": content}, maybe=maybe)


def _rows() -> Iterator[Attack]:
    for form, row in {"JSONL": NATIVE, "Mooncake": MOONCAKE}.items():
        for column in row:
            for kind, value in {**kinds.NO_NUMBERS, **kinds.JSON_ONLY}.items():
                content = _spoilt(row, (column,), value)
                yield Attack(f"{form} {column}: {kind}", ("trace", "inspect", "t"), {"t": content}, maybe=True)


def _words() -> Iterator[Attack]:
    for call, names in FLAGS.items():
        for flag in names.split():
            for kind, word in kinds.WORDS.items():
                yield _flag(call, flag, kind, word, maybe=True)
    for call, names in SEARCH_FLAGS.items():
        for flag in names.split():
            for kind in kinds.NEVER:
                yield _flag(call, flag, kind, kinds.WORDS[kind], maybe=False)
    for lengths in kinds.LENGTHS:
        call_words = ("trace", "generate", "new.csv", "-n", "3", "--prompt-tokens", lengths)
        yield Attack(f"lengths {lengths[:30]}", call_words)


def _flag(call: str, flag: str, kind: str, word: str, *, maybe: bool) -> Attack:
    words = f"ttft_p99={word}s" if flag == "--slo" else word
    return Attack(f"{call.split(maxsplit=1)[0]} {flag}: {kind}", (*call.split(), flag, words), maybe=maybe)


def _paths() -> Iterator[Attack]:
    calls = {
        "trace": "simulate tiny --gpu h100-sxm --trace {}",
        "inspect": "trace inspect {}",
        "convert": "trace convert {} new.csv",
        "model": "memory {} --gpu h100-sxm",
        "GPU": "memory tiny --gpu {}.yaml",
        "GPU name": "memory tiny --gpu {}",
        "step times": f"{SIMULATE} --step-time-model {{}}",
        "space": f"{OPTIMIZE} --space {{}}",
        "config": f"{MEMORY} --config {{}}",
        "fleet": f"{SIMULATE} --fleet {{}}",
        "runs": "validate {}",
        "calibrate": "calibrate {} --gpu h100-sxm --out new.yaml",
        "log": "memory --gpu h100-sxm --from-log {}",
    }
    for place, call in calls.items():
        for kind, path in kinds.NAMES.items():
            words = tuple(word.format(path) for word in call.split())
            yield Attack(f"{place}: {kind}", words)


def _outputs() -> Iterator[Attack]:
    calls = {
        "--out": f"{SIMULATE} --out {{}}",
        "--step-log": f"{SIMULATE} --step-log {{}}",
        "convert to": "trace convert small.csv {}.csv",
        "generate": "trace generate {}.jsonl -n 2",
        "draw": "trace inspect small.csv --out {}",
        "calibrate --out": "calibrate runs.json --gpu h100-sxm --out {}",
        "plot": "validate runs.json --plot {}",
    }
    names = {**kinds.NAMES, "an input": "small.csv", "an input by another name": "./tiny/../small.csv"}
    written = {
        "none",
        "zeros",
        "nothing",
        "bytes",
    }  # folders that are made, a device that takes all, the current folder
    for place, call in calls.items():
        for kind, path in names.items():
            if kind == "bytes":  # a real stderr writes them as escapes, pytest's does not
                continue
            given = path.replace("small.csv", "runs.json") if "runs.json" in call else path
            words = tuple(word.format(given) for word in call.split())
            yield Attack(f"{place}: {kind}", words, maybe=kind in written or place in {"convert to", "generate"})


def _spoilt(values: Any, field: tuple[str | int, ...], text: str) -> bytes:
    """The document as JSON, which is YAML too, with `text` in the place of one value."""
    mark = "@@@"
    document = json.loads(json.dumps(values))
    inner = document
    for key in field[:-1]:
        inner = inner[key]
    inner[field[-1]] = mark
    return json.dumps(document).replace(f'"{mark}"', text).encode()
