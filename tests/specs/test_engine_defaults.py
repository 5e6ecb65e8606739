"""What vLLM's start-up makes of the arguments, against the real package and the known differences between versions."""

import gzip
import json
from bisect import bisect_left
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.errors import ConfigError
from sim.specs.capture_sizes import full_graph_sizes
from sim.specs.engine import EngineConfig, ResolvedEngine, UsageContext
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import AttentionKind
from sim.specs.models import load_model
from sim.specs.releases import KNOWN_VERSIONS, NEWEST, parse_version, release_for
from sim.specs.vllm import resolve_engine
from tests.shared import SHARED, needs_shared
from tests.specs.makers import make_cpu, make_model

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "engine_defaults.json").read_text())
GPUS = {
    "A100-80": "a100-sxm-80gb",
    "B200": "b200-sxm",
    "H100": "h100-sxm",
    "H200": "h200-sxm",
    "L4": "l4",
    "L40S": "l40s",
    "RTX4090": "rtx-4090",
}
MODELS = {
    "llama-8b": make_model(),
    "qwen3-8b": make_model(architecture="Qwen3ForCausalLM", max_model_len=40960),
    "gemma3-27b": make_model(architecture="Gemma3ForConditionalGeneration", num_kv_heads=16),
    "deepseek-v3": make_model(
        architecture="DeepseekV3ForCausalLM", kind="mla", num_heads=128, num_kv_heads=1, max_model_len=163840
    ),
    "gpt-oss-20b": make_model(architecture="GptOssForCausalLM", num_heads=64),
}
SAME_NAMES = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "block_size",
    "gpu_memory_utilization",
    "async_scheduling",
    "watermark",
    "max_model_len",
    "cudagraph_mode",
)
WITHOUT_TRITON = ("0.31.0", "0.32.0")
"""Recorded where Triton is absent, as the recordings say, which every CUDA server has: these versions then choose the model runner that
has no async scheduling over pipeline stages (`use_v2_model_runner` in vllm/config/vllm.py)."""


def resolve(vllm_version: str | None = None, *, gpu: HardwareProfile | None = None, **arguments: Any) -> ResolvedEngine:
    return resolve_engine(
        EngineConfig(**arguments), make_model(), gpu or load_gpu("h100-sxm"), vllm_version=vllm_version
    )


def gpu_of(device: str) -> HardwareProfile:
    return make_cpu() if device == "cpu" else load_gpu(GPUS[device])


def row_name(row: dict[str, Any]) -> str:
    return f"{row['device']}-{row['model']}-{row['usage']}-{row['args']}"


@pytest.mark.parametrize("row", GOLDEN["rows"], ids=row_name)
def test_defaults_equal_those_of_the_real_package(row: dict[str, Any]) -> None:
    """Each recorded configuration of vLLM 0.32.0 is reproduced exactly."""
    row = GOLDEN["in_every_row"] | row
    engine = resolve_engine(
        EngineConfig(**row["args"]),
        MODELS[row["model"]],
        gpu_of(row["device"]),
        vllm_version=GOLDEN["vllm_version"],
        usage="offline" if row["usage"] == "LLM_CLASS" else "server",
    )
    if "pipeline_parallel_size" in row["args"]:
        row["async_scheduling"] = not row["async_scheduling"]  # WITHOUT_TRITON
    assert {name: getattr(engine, name) for name in SAME_NAMES} == {name: row[name] for name in SAME_NAMES}
    assert list(engine.cudagraph_capture_sizes) == GOLDEN["capture_sizes"][row["cudagraph_capture_sizes"]]
    assert engine.enable_prefix_caching == row["prefix_caching"]
    assert engine.enable_chunked_prefill == row["chunked_prefill"]
    assert engine.scheduling_policy == row["policy"]
    assert engine.scheduler_reserve_full_isl == row["reserve_full_isl"]


@pytest.mark.parametrize(
    ("version", "works", "batches"),
    [
        ("0.14.1", False, 2),
        ("0.15.0", True, 2),
        ("0.22.1", True, 2),
        ("0.23.0", True, 3),
        ("0.30.0", True, 3),
        ("0.31.0", True, 3),
        ("0.32.0", True, 3),
        ("0.33.0", True, 3),
    ],
)
def test_async_scheduling_with_pipeline_stages(version: str, works: bool, batches: int) -> None:
    """Where the version has both together that is the default; elsewhere stages switch it off and both are refused.

    The second model runner has one batch more than stages in flight then.
    """
    engine = resolve(version, pipeline_parallel_size=2)
    assert (engine.async_scheduling, engine.num_batches_in_flight) == (works, batches)
    if works:
        assert resolve(version, async_scheduling=True, pipeline_parallel_size=2) == engine
    else:
        with pytest.raises(
            ConfigError, match=rf"^async_scheduling does not work with .* 2 in vLLM {version}, but does"
        ):
            resolve(version, async_scheduling=True, pipeline_parallel_size=2)


def test_an_argument_that_nothing_else_decides_is_as_given() -> None:
    """Where it is left open the version decides, or it stays open."""
    given: dict[str, Any] = {
        "watermark": 0.1,
        "scheduler_reserve_full_isl": False,
        "max_num_active_seqs": 7,
        "enforce_eager": True,
    }
    assert given.items() <= asdict(resolve(**given)).items()
    old, new = resolve("0.18.1"), resolve("0.19.0")
    assert (old.scheduler_reserve_full_isl, new.scheduler_reserve_full_isl) == (False, True)
    assert (old.gpu_memory_utilization, resolve("0.20.0").gpu_memory_utilization) == (0.9, 0.92)
    assert resolve("0.8.1").enable_prefix_caching
    assert new.kv_cache_memory_bytes is None


def test_there_are_no_more_stages_than_layers() -> None:
    """Each pipeline stage has a layer at least."""
    with pytest.raises(ConfigError, match="must not exceed the 2 layers"):
        resolve_engine(EngineConfig(pipeline_parallel_size=3), MODELS["llama-8b"], load_gpu("h100-sxm"))


@needs_shared
def test_the_recorded_rows_are_the_reference_rows() -> None:
    """The compact copy here says what the reference material says."""
    rows = json.loads((SHARED / "golden" / "engine_defaults.json").read_text())["rows"]
    assert len(GOLDEN["rows"]) == len(rows) == 112
    for ours, theirs in zip(GOLDEN["rows"], rows, strict=True):
        row = GOLDEN["in_every_row"] | ours
        row["cudagraph_capture_sizes"] = GOLDEN["capture_sizes"][row["cudagraph_capture_sizes"]]
        assert row == {name: theirs[name] for name in row}


@needs_shared
def test_token_budget_in_flight_of_the_recorded_kv_caches() -> None:
    """The recorded KV caches count max_num_batched_tokens for each batch in flight: two with async scheduling."""
    rows = json.loads((SHARED / "golden" / "kv_cache_sizes.json").read_text())["rows"]
    checked = [row for row in rows if "max_model_len_after" in row]
    for row in checked:
        known = {
            name: row["args"][name] for name in ("async_scheduling", "max_num_batched_tokens") if name in row["args"]
        }
        model = make_model(max_model_len=row["max_model_len_after"])
        engine = resolve_engine(EngineConfig(**known), model, load_gpu("h100-sxm"), vllm_version="0.32.0")
        batches = 2 if engine.async_scheduling else 1
        assert engine.max_num_batched_tokens == row["max_num_batched_tokens"]
        assert engine.max_num_batched_tokens * batches == row["max_in_flight_tokens"]
    assert len(checked) > 90


# --- CUDA-graph capture sizes


def padded(engine: ResolvedEngine, num_tokens: int) -> int | None:
    index = bisect_left(engine.cudagraph_capture_sizes, num_tokens)
    return engine.cudagraph_capture_sizes[index] if index < len(engine.cudagraph_capture_sizes) else None


@pytest.mark.parametrize("version", ["0.11.1", "0.14.1", "0.21.0", "0.33.0"])
def test_graph_sizes_since_0_11_1(version: str) -> None:
    """256 sequences on an H100: 51 sizes, 35 of them as full graphs; 37 pads to 40, 257 to 272, 513 runs eagerly."""
    engine = resolve(version, max_num_seqs=256, max_num_batched_tokens=8192)
    assert len(engine.cudagraph_capture_sizes) == 51
    assert len(full_graph_sizes(engine.cudagraph_mode, engine.cudagraph_capture_sizes, max_num_seqs=256)) == 35
    assert [padded(engine, tokens) for tokens in (37, 257, 300, 513, 600)] == [40, 272, 304, None, None]


@pytest.mark.parametrize("version", ["0.8.5", "0.10.2", "0.11.0"])
def test_graph_sizes_before_0_11_1(version: str) -> None:
    """67 sizes at every 8 tokens up to 512: 257 pads to 264."""
    engine = resolve(version, max_num_seqs=256, max_num_batched_tokens=8192)
    assert len(engine.cudagraph_capture_sizes) == 67
    assert padded(engine, 257) == 264


@pytest.mark.parametrize(("version", "largest"), [("0.9.2", 512), ("0.10.0", 128), ("0.21.0", 128), ("0.33.0", 128)])
def test_capture_stops_at_twice_max_num_seqs(version: str, largest: int) -> None:
    """Since 0.10.0 graphs above 2 x max_num_seqs are not captured."""
    assert resolve(version, max_num_seqs=64).cudagraph_capture_sizes[-1] == largest


@pytest.mark.parametrize(("version", "count"), [("0.21.0", 28), ("0.30.0", 28), ("0.31.0", 29)])
def test_max_num_seqs_itself_is_captured_since_0_31(version: str, count: int) -> None:
    """100 sequences: 1, 2, 4, 8 to 200 by 8, and since 0.31.0 also 100."""
    sizes = resolve(version, max_num_seqs=100).cudagraph_capture_sizes
    assert len(sizes) == count
    assert (100 in sizes) == (count == 29)


def test_a_largest_size_of_the_users_own_bounds_max_num_seqs_too() -> None:
    """100 sequences are captured under a cap of 100, not under one of 99."""
    assert resolve(max_num_seqs=100, max_cudagraph_capture_size=100).cudagraph_capture_sizes[-2:] == (96, 100)
    assert resolve(max_num_seqs=100, max_cudagraph_capture_size=99).cudagraph_capture_sizes[-1] == 96


@pytest.mark.parametrize(("version", "largest"), [("0.20.0", 288), ("0.20.1", 300)])
def test_the_token_budget_itself_is_captured_since_0_20_1(version: str, largest: int) -> None:
    """300 tokens and room for any batch of them: every 16th size, and since 0.20.1 also 300."""
    assert resolve(version, max_num_batched_tokens=300, max_num_seqs=200).cudagraph_capture_sizes[-1] == largest


@pytest.mark.parametrize(("version", "count"), [("0.27.1", 51), ("0.28.0", 83)])
def test_blackwell_captures_to_1024_since_0_28(version: str, count: int) -> None:
    """Compute capability 10.x only; a consumer Blackwell (12.0) stays at 512."""
    for gpu in ("b200-sxm", "b300-sxm"):
        assert len(resolve(version, gpu=load_gpu(gpu), max_num_seqs=1024).cudagraph_capture_sizes) == count
    assert len(resolve(version, gpu=load_gpu("rtx-5090"), max_num_seqs=1024).cudagraph_capture_sizes) == 51


def test_gpt_oss_captures_to_1024_with_any_number_of_sequences() -> None:
    """The model raises the cap where the user leaves it open; in wide spacing also where the version has a narrow one."""
    model = MODELS["gpt-oss-20b"]
    gpu = load_gpu("h100-sxm")
    assert resolve_engine(EngineConfig(max_num_seqs=64), model, gpu).cudagraph_capture_sizes[-1] == 1024
    for version, largest, count in (
        ("0.10.0", 128, 19),
        ("0.10.2", 1024, 83),
        ("0.11.0", 992, 81),
        ("0.11.1", 1024, 83),
    ):
        sizes = resolve_engine(EngineConfig(max_num_seqs=64), model, gpu, vllm_version=version).cudagraph_capture_sizes
        assert (sizes[-1], len(sizes)) == (largest, count)
    limited = EngineConfig(max_cudagraph_capture_size=256)
    assert resolve_engine(limited, model, gpu).cudagraph_capture_sizes[-1] == 256


@pytest.mark.parametrize("arguments", [{"enforce_eager": True}, {"cudagraph_mode": "NONE"}])
def test_without_graphs_nothing_is_captured(arguments: dict[str, Any]) -> None:
    """Eager execution and mode NONE both mean no sizes."""
    engine = resolve(**arguments)
    assert (engine.cudagraph_mode, engine.cudagraph_capture_sizes) == ("NONE", ())


@pytest.mark.parametrize(
    ("model", "ranks", "graphs"), [("Qwen3-30B-A3B", 2, False), ("Qwen3-30B-A3B", 1, True), ("Llama-3.1-8B", 2, True)]
)
def test_deepep_high_throughput_goes_with_no_graph(model: str, ranks: int, graphs: bool) -> None:
    """Of ranks with experts, whatever is asked for; the others do not use it."""
    asked = EngineConfig(
        data_parallel_size=ranks,
        enable_expert_parallel=model.startswith("Qwen3"),
        all2all_backend="deepep_high_throughput",
        cudagraph_mode="FULL_DECODE_ONLY",
    )
    engine = resolve_engine(asked, load_model(model), load_gpu("h100-sxm"))
    assert (engine.cudagraph_mode, bool(engine.cudagraph_capture_sizes)) == (
        "FULL_DECODE_ONLY" if graphs else "NONE",
        graphs,
    )


def test_given_sizes_lose_what_no_batch_reaches() -> None:
    """A list of the user's own is kept up to the token budget."""
    engine = resolve(cudagraph_capture_sizes=(1, 8, 2048, 4096), max_num_batched_tokens=2048)
    assert engine.cudagraph_capture_sizes == (1, 8, 2048)


def test_given_sizes_must_hold_one_that_a_batch_reaches() -> None:
    """All above the token budget is an error."""
    with pytest.raises(
        ConfigError, match=r"^cudagraph_capture_sizes must hold a size of at most .*2048.* got 4096 and up"
    ):
        resolve(cudagraph_capture_sizes=(4096, 8192), max_num_batched_tokens=2048)


def test_given_sizes_and_largest_must_agree() -> None:
    """As in vLLM, the two arguments may not contradict each other."""
    assert resolve(cudagraph_capture_sizes=(1, 8), max_cudagraph_capture_size=8).cudagraph_capture_sizes == (1, 8)
    with pytest.raises(
        ConfigError, match=r"^max_cudagraph_capture_size must equal the largest .*\(8\), got 16; give only"
    ):
        resolve(cudagraph_capture_sizes=(1, 8), max_cudagraph_capture_size=16)


@given(
    version=st.sampled_from(KNOWN_VERSIONS),
    seqs=st.integers(1, 3000),
    tokens=st.integers(1, 20000),
    gpu=st.sampled_from(["h100-sxm", "b200-sxm", "l4"]),
)
def test_capture_sizes_ascend_within_the_token_budget(version: str, seqs: int, tokens: int, gpu: str) -> None:
    """Whatever the version: ascending, without repetition, never above the budget, and 1 is always there."""
    sizes = resolve(
        version, gpu=load_gpu(gpu), max_num_seqs=min(seqs, tokens), max_num_batched_tokens=tokens
    ).cudagraph_capture_sizes
    assert sizes[0] == 1
    assert sizes[-1] <= tokens
    assert all(smaller < larger for smaller, larger in pairwise(sizes))


# --- versions


def test_the_newest_version_is_the_default() -> None:
    """Without a version, 0.33.0 is simulated."""
    assert resolve().vllm_version == NEWEST == "0.33.0"
    assert list(KNOWN_VERSIONS) == sorted(KNOWN_VERSIONS, key=parse_version)


@pytest.mark.parametrize(
    ("asked", "followed"),
    [
        ("0.16.2", "0.16.0"),
        ("0.8", "0.8.5"),
        ("0.9.2", "0.9.2"),
        ("v0.11.0", "0.11.0"),
        ("vllm 0.19.0", "0.19.0"),
        ("0.15.1 (a fork with tracing)", "0.15.1"),
        ("0.21.0rc1", "0.21.0"),
        ("0.32.0.dev3+g1234", "0.32.0"),
        ("0.90.0", "0.33.0"),
        ("1.0", "0.33.0"),
    ],
)
def test_a_version_in_between_follows_the_older_one(asked: str, followed: str) -> None:
    """The newest known release not above the one asked for."""
    assert release_for(asked).version == followed


@pytest.mark.parametrize("asked", ["nightly", "0", "", "abc 0.15", "0.15.1.2.3"])
def test_a_version_that_is_none_is_refused(asked: str) -> None:
    """The message shows what one looks like."""
    with pytest.raises(ConfigError, match=r"^vllm_version must look like 0\.33\.0, got "):
        parse_version(asked)


def test_a_garbled_version_suggests_known_ones() -> None:
    """A near miss names the nearest."""
    with pytest.raises(ConfigError, match=r"got '0,19,1'\. Did you mean 0\.19\.1"):
        parse_version("0,19,1")


@pytest.mark.parametrize("asked", ["0.6.6", "0.7.3"])
def test_the_engine_before_v1_is_refused(asked: str) -> None:
    """Older than 0.8 ran another engine."""
    with pytest.raises(ConfigError, match=r"^vllm_version must be 0\.8 or newer .* got '0\.[67]"):
        resolve(asked)


@pytest.mark.parametrize(
    ("feature", "first_with"),
    [
        ("async_scheduling", "0.14.0"),
        ("scheduler_reserve_full_isl", "0.19.0"),
        ("subtracts_graph_memory", "0.20.0"),
        ("counts_tokens_of_requests", "0.20.1"),
        ("rules.orders_ties_by_id", "0.12.0"),
        ("rules.refunds_preempted_tokens", "0.11.1"),
        ("rules.stops_at_last_token", "0.11.1"),
        ("rules.unhashed_blocks_first", "0.24.0"),
        ("rules.lone_request_ignores_threshold", "0.31.0"),
        ("rules.preempts_past_itself", "0.33.0"),
    ],
)
def test_what_versions_brought(feature: str, first_with: str) -> None:
    """Each is off in every version before one, and on from that one."""
    on = {version: feature_of(version, feature) for version in KNOWN_VERSIONS}
    assert on == {version: parse_version(version) >= parse_version(first_with) for version in KNOWN_VERSIONS}


@pytest.mark.parametrize(
    ("feature", "first_without"),
    [("rules.skips_unchunked_prompts", "0.12.0"), ("rules.asserts_batch_within_running", "0.10.2")],
)
def test_what_versions_mended(feature: str, first_without: str) -> None:
    """Each is on in every version before one, and off from that one."""
    on = {version: feature_of(version, feature) for version in KNOWN_VERSIONS}
    assert on == {version: parse_version(version) < parse_version(first_without) for version in KNOWN_VERSIONS}


def feature_of(version: str, feature: str) -> Any:
    value: Any = resolve(version)
    for part in feature.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize(
    ("feature", "values"),
    [
        ("gpu_memory_utilization", {"0.8.5": 0.9, "0.19.1": 0.9, "0.20.0": 0.92, "0.33.0": 0.92}),
        ("cudagraph_mode", {"0.10.2": "PIECEWISE", "0.11.0": "FULL_AND_PIECEWISE"}),
        ("rules.steps_back", {"0.11.0": "never", "0.11.1": "scheduled", "0.27.1": "scheduled", "0.28.0": "always"}),
    ],
)
def test_values_that_changed_between_versions(feature: str, values: dict[str, Any]) -> None:
    """On both sides of each change."""
    assert {version: feature_of(version, feature) for version in values} == values


def test_an_a100_counted_as_large_before_0_9() -> None:
    """80 GiB were enough for the larger defaults in 0.8."""
    a100 = load_gpu("a100-sxm-80gb")
    limits = [(e.max_num_batched_tokens, e.max_num_seqs) for e in (resolve(v, gpu=a100) for v in ("0.8.5", "0.9.0"))]
    assert limits == [(8192, 1024), (2048, 256)]


def test_chunked_prefill_was_forced_on_before_0_11_1() -> None:
    """Switching it off changed nothing, the token budget included, which did not fit max_model_len either."""
    old, new = (resolve(version, enable_chunked_prefill=False) for version in ("0.11.0", "0.11.1"))
    assert (old.enable_chunked_prefill, old.max_num_batched_tokens) == (True, 8192)
    assert (new.enable_chunked_prefill, new.max_num_batched_tokens) == (False, 131072)
    assert [resolve(v, max_model_len=4).max_num_batched_tokens for v in ("0.11.0", "0.11.1")] == [8192, 4096]


def test_a_small_budget_was_refused_before_0_10_1() -> None:
    """The default of max_num_seqs was not lowered to it."""
    with pytest.raises(ConfigError, match=r"^max_num_seqs must not exceed max_num_batched_tokens, got 1024 and 300"):
        resolve("0.10.0", max_num_batched_tokens=300)
    assert resolve("0.10.1", max_num_batched_tokens=300).max_num_seqs == 300


@pytest.mark.parametrize(
    ("model", "version", "caches"),
    [
        ("Qwen3.5-4B", "0.27.1", False),
        ("Qwen3.5-4B", "0.28.0", True),
        ("Llama-3.1-8B", "0.8.0", True),
        ("gpt-oss-20b", "0.27.1", True),
    ],
)
def test_prefixes_of_models_with_states_are_cached_by_default_since_0_28(
    model: str, version: str, *, caches: bool
) -> None:
    """vllm#23716 and #50991; asked for, they are before."""
    spec, gpu = load_model(model), load_gpu("h100-sxm")
    assert resolve_engine(EngineConfig(), spec, gpu, vllm_version=version).enable_prefix_caching is caches
    asked = EngineConfig(enable_prefix_caching=True)
    assert resolve_engine(asked, spec, gpu, vllm_version=version).enable_prefix_caching


def test_priority_is_a_policy_of_v1_since_0_9_2() -> None:
    """Before, asking for it is refused."""
    with pytest.raises(
        ConfigError, match=r"^scheduling_policy priority is unknown .* vLLM 0\.9\.1, it exists since 0\.9\.2"
    ):
        resolve("0.9.1", scheduling_policy="priority")
    assert resolve("0.9.2", scheduling_policy="priority").scheduling_policy == "priority"


NO_RAY = {("0.8.5", "pipeline_parallel_size"), ("0.9.2", "pipeline_parallel_size")}
"""Refused where they were recorded, as Ray was not installed."""


@needs_shared
def test_defaults_of_every_version_are_those_recorded() -> None:
    """What the argument code of 33 versions makes of each GPU; what it refuses is refused here."""
    recorded = json.loads(gzip.decompress((SHARED / "vllm" / "defaults_by_version.json.gz").read_bytes()))["versions"]
    assert len(recorded) == 33
    model = make_model(max_model_len=8192)
    for version, rows in recorded.items():
        for row in rows["rows"]:
            if "error" in row and (version, *row["args"]) in NO_RAY:
                continue
            if "pipeline_parallel_size" in row["args"] and version in WITHOUT_TRITON:
                continue
            usage: UsageContext = "offline" if row["usage"] == "LLM_CLASS" else "server"
            given, gpu = EngineConfig(**row["args"]), gpu_of(row["device"])
            if "error" in row:
                with pytest.raises(ConfigError):
                    resolve_engine(given, model, gpu, vllm_version=version, usage=usage)
            else:
                engine = resolve_engine(given, model, gpu, vllm_version=version, usage=usage)
                assert recorded_defaults(row).items() <= asdict(engine).items(), f"{version} {row}"


def recorded_defaults(row: dict[str, Any]) -> dict[str, Any]:
    """A row under our names; what its version does not have is off."""
    absent = {"async_scheduling": False, "reserve_full_isl": False, "watermark": 0.0, "cudagraph_mode": "PIECEWISE"}
    row = row | {name: off for name, off in absent.items() if row[name] == "absent"}
    ours = ("enable_prefix_caching", "enable_chunked_prefill", "long_prefill_token_threshold")
    return {name: row[name] for name in (*SAME_NAMES, *ours)} | {
        "cudagraph_mode": row["cudagraph_mode"].removeprefix("CUDAGraphMode."),
        "scheduling_policy": row["policy"],
        "scheduler_reserve_full_isl": row["reserve_full_isl"],
        "cudagraph_capture_sizes": tuple(row["capture_sizes"]),
    }


def test_the_largest_gpus_get_a_larger_budget_since_0_28() -> None:
    """From 160 GiB on the server takes 16,384 tokens a step instead of 8,192."""
    b200 = load_gpu("b200-sxm")
    assert [resolve(v, gpu=b200).max_num_batched_tokens for v in ("0.27.1", "0.28.0")] == [8192, 16384]


@pytest.mark.parametrize(
    ("arguments", "version", "since"),
    [
        ({"async_scheduling": True}, "0.9.2", "0.10.0"),
        ({"cudagraph_mode": "FULL"}, "0.10.0", "0.10.1"),
        ({"kv_cache_memory_bytes": 2**30}, "0.10.1", "0.10.2"),
        ({"max_cudagraph_capture_size": 8}, "0.11.0", "0.11.1"),
        ({"language_model_only": True}, "0.16.0", "0.17.0"),
        ({"performance_mode": "throughput"}, "0.16.0", "0.17.0"),
        ({"max_num_scheduled_tokens": 64}, "0.16.0", "0.17.0"),
        ({"scheduler_reserve_full_isl": False}, "0.18.1", "0.19.0"),
        ({"watermark": 0.1}, "0.23.0", "0.24.0"),
        ({"long_prefill_token_threshold_adaptive": True}, "0.30.0", "0.31.0"),
        ({"max_num_active_seqs": 4}, "0.30.0", "0.31.0"),
        ({"max_num_queued_reqs": 4}, "0.28.0", "0.29.0"),
        ({"max_num_queued_tokens": 4}, "0.28.0", "0.29.0"),
    ],
)
def test_an_argument_that_a_version_does_not_know(arguments: dict[str, Any], version: str, since: str) -> None:
    """It is refused with the version that has it, and accepted there."""
    name = next(iter(arguments))
    with pytest.raises(ConfigError, match=rf"^{name} is unknown to vLLM {version}, it exists since {since}"):
        resolve(version, **arguments)
    resolve(since, **arguments)


# --- what is given and what follows from it


def test_small_limits_pull_defaults_down() -> None:
    """A default budget never exceeds max_num_seqs x max_model_len, and a default max_num_seqs never the budget."""
    assert resolve(max_num_seqs=4, max_model_len=100).max_num_batched_tokens == 400
    assert resolve(max_num_batched_tokens=500).max_num_seqs == 500


def test_without_chunked_prefill_the_budget_holds_a_whole_prompt() -> None:
    """The default budget rises to max_model_len."""
    assert resolve(enable_chunked_prefill=False).max_num_batched_tokens == 131072


def test_without_chunked_prefill_a_smaller_budget_is_refused() -> None:
    """A prompt could never be scheduled."""
    with pytest.raises(
        ConfigError, match=r"^max_num_batched_tokens must be at least max_model_len \(4096\) .* got 2048"
    ):
        resolve(enable_chunked_prefill=False, max_model_len=4096, max_num_batched_tokens=2048)
    whole: dict[str, Any] = {"enable_chunked_prefill": False, "max_model_len": 4096}
    resolve(**whole, max_num_scheduled_tokens=4096)
    with pytest.raises(
        ConfigError, match=r"^max_num_scheduled_tokens must be at least max_model_len \(4096\) .* got 2048"
    ):
        resolve(**whole, max_num_scheduled_tokens=2048)


@pytest.mark.parametrize("arguments", [{"max_num_batched_tokens": 64, "max_num_seqs": 65}, {"max_num_seqs": 9000}])
def test_more_sequences_than_tokens_are_refused(arguments: dict[str, Any]) -> None:
    """Each running request needs a token a step; a budget left to its default counts too."""
    with pytest.raises(ConfigError, match=r"^max_num_seqs must not exceed max_num_batched_tokens, got "):
        resolve(**arguments)


def test_the_narrower_limits_must_be_narrower() -> None:
    """max_num_active_seqs and max_num_scheduled_tokens only restrict, or equal what they restrict."""
    resolve(max_num_seqs=8, max_num_batched_tokens=64, max_num_active_seqs=8, max_num_scheduled_tokens=64)
    with pytest.raises(ConfigError, match=r"^max_num_active_seqs must not exceed max_num_seqs \(8\), got 9"):
        resolve(max_num_seqs=8, max_num_active_seqs=9)
    with pytest.raises(ConfigError, match=r"^max_num_scheduled_tokens must not exceed .*\(64\), got 65"):
        resolve(max_num_seqs=8, max_num_batched_tokens=64, max_num_scheduled_tokens=65)


def test_max_model_len_comes_from_the_model() -> None:
    """Shorter is fine, longer is refused with the fix, auto waits for the memory plan."""
    assert resolve().max_model_len == 131072
    assert resolve(max_model_len=4096).max_model_len == 4096
    assert resolve(max_model_len="auto").max_model_len is None
    with pytest.raises(ConfigError, match=r"^max_model_len must not exceed the 131072 tokens .* got 131073; lower it"):
        resolve(max_model_len=131073)


@pytest.mark.parametrize("size", [3, 64])
def test_tensor_parallelism_divides_the_heads(size: int) -> None:
    """32 heads with 8 KV heads go on 1 to 32 GPUs in powers of two; the message says so."""
    with pytest.raises(
        ConfigError, match=rf"^tensor_parallel_size must .* 32 attention heads of tiny .* got {size}; .* 16, 32\."
    ):
        resolve(tensor_parallel_size=size)


def test_kv_heads_are_split_or_repeated_evenly() -> None:
    """8 KV heads on 6 GPUs cannot be, on 16 they are repeated; MLA and linear attention have none to share out."""
    six = EngineConfig(tensor_parallel_size=6)
    gpu = load_gpu("h100-sxm")
    with pytest.raises(ConfigError, match=r"^tensor_parallel_size must .* got 6; use one of 1, 2, 4, 8, 16, 24\."):
        resolve_engine(six, make_model(num_heads=48), gpu)
    assert resolve(tensor_parallel_size=16).tensor_parallel_size == 16
    kinds: tuple[AttentionKind, ...] = ("mla", "linear")
    for kind in kinds:
        model = make_model(num_heads=48, num_kv_heads=8, kind=kind)
        assert resolve_engine(six, model, gpu).tensor_parallel_size == 6


@pytest.mark.parametrize(("gib", "budget"), [(69.9, 2048), (70, 8192), (159.9, 8192), (160, 16384)])
def test_tiers_begin_at_70_and_160_gib(gib: float, budget: int) -> None:
    """An A100 stays in the smallest tier with any memory."""
    memory = int(gib * 1024**3)
    assert resolve(gpu=replace(load_gpu("l4"), memory_bytes=memory)).max_num_batched_tokens == budget
    if gib < 160:
        a100 = replace(load_gpu("a100-sxm-80gb"), memory_bytes=memory)
        assert resolve(gpu=a100).max_num_batched_tokens == 2048


def test_kv_cache_dtype_decides_the_bytes() -> None:
    """auto is the model's own dtype, fp8 one byte."""
    assert resolve().kv_cache_dtype_bytes == 2
    assert resolve(kv_cache_dtype="fp8").kv_cache_dtype_bytes == 1
    wide = make_model(dtype="float32")
    assert resolve_engine(EngineConfig(), wide, load_gpu("l4")).kv_cache_dtype_bytes == 4


def test_a_cpu_has_neither_graphs_nor_async_scheduling() -> None:
    """As vLLM's CPU platform, where MLA keeps 16 tokens a block."""
    engine = resolve(gpu=make_cpu())
    assert (engine.async_scheduling, engine.cudagraph_mode, engine.block_size) == (False, "NONE", 128)
    mla = make_model(kind="mla")
    assert resolve_engine(EngineConfig(), mla, make_cpu()).block_size == 16


@given(
    seqs=st.none() | st.integers(1, 4096),
    tokens=st.none() | st.integers(1, 65536),
    length=st.none() | st.integers(2, 131072),
    memory=st.integers(2**33, 2**39),
)
def test_resolved_limits_are_consistent(seqs: int | None, tokens: int | None, length: int | None, memory: int) -> None:
    """What is resolved keeps what was given, and never has more sequences than tokens."""
    gpu = replace(load_gpu("l4"), memory_bytes=memory)
    assume((seqs or 1) <= (tokens or 2048))
    engine = resolve(gpu=gpu, max_num_seqs=seqs, max_num_batched_tokens=tokens, max_model_len=length)
    assert engine.max_num_seqs <= engine.max_num_batched_tokens
    assert seqs in {None, engine.max_num_seqs}
    assert tokens in {None, engine.max_num_batched_tokens}
