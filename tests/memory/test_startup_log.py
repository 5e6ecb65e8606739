"""What is read from vLLM's start-up logs, over the wordings of its versions."""

from pathlib import Path

import pytest

from sim.errors import ConfigError
from sim.memory.startup_log import StartupLog, read_startup_log
from sim.specs.engine import EngineConfig

LOGS = Path(__file__).resolve().parents[1] / "data" / "startup_logs"


def read(version: str) -> StartupLog:
    return read_startup_log(LOGS / f"vllm-{version}.log")


def test_a_log_of_0_19() -> None:
    """Version, model, arguments and each figure; the override that profiling uses internally is not taken for one."""
    log = read("0.19.0")
    assert (log.vllm_version, log.model) == ("0.19.0", "meta-llama/Llama-3.1-8B-Instruct")
    assert (log.engine.max_model_len, log.engine.gpu_memory_utilization) == (8192, 0.95)
    assert (log.engine.max_num_batched_tokens, log.engine.cudagraph_mode) == (8192, "FULL_AND_PIECEWISE")
    assert len(log.engine.cudagraph_capture_sizes or ()) == 51
    assert log.engine.num_gpu_blocks_override is None
    assert log.reported == {
        "total": 79.19,
        "weights": 14.99,
        "activations": 1.89,
        "non-torch": 0.25,
        "CUDA graphs, estimate": 0.84,
        "available for the KV cache": 58.11,
        "CUDA graphs taken": 0.91,
        "KV cache tokens": 476_016,
        "maximum concurrency": 58.11,
    }


def test_a_log_of_0_8() -> None:
    """Four decimals, no unit words, arguments as a namespace; the engine's own line says what matters."""
    log = read("0.8.5")
    assert (log.vllm_version, log.model) == ("0.8.5", "meta-llama/Llama-3.1-8B-Instruct")
    assert log.reported["weights"] == 14.9889
    assert (log.reported["KV cache tokens"], log.reported["maximum concurrency"]) == (158_656, 4.84)
    assert (log.engine.max_model_len, log.engine.enable_prefix_caching) == (32_768, True)


def test_a_log_without_a_server() -> None:
    """The offline engine prints no arguments; full graphs up to 128 below piecewise ones up to 256 tell max_num_seqs."""
    log = read("0.22.0")
    assert log.model == "/model/Qwen2.5-7B-Instruct"
    assert (log.engine.max_num_seqs, log.engine.max_num_batched_tokens) == (128, 2048)
    assert log.reported["CUDA graphs, estimate"] == 0.37


def test_a_log_of_many_workers() -> None:
    """The least room decides; values that are no literals leave the plain ones readable; what no plan knows is named."""
    log = read("0.28.0")
    assert log.reported["available for the KV cache"] == 39.75
    assert (log.reported["KV cache tokens"], log.reported["maximum concurrency"]) == (600_000, 3.66)
    assert (log.engine.tensor_parallel_size, log.engine.enable_expert_parallel) == (8, True)
    assert (log.engine.max_num_seqs, log.engine.cudagraph_mode) == (256, "FULL_DECODE_ONLY")
    assert log.engine.cudagraph_capture_sizes == (1, 2, 4, 8, 16)
    assert log.loads_prediction_layers
    assert log.left_out == ("kv_transfer_config",)


@pytest.mark.parametrize(
    ("line", "figure", "value"),
    [
        ("Loading model weights took 7.9692 GB", "weights", 7.9692),
        ("non_torch_memory takes 0.16GiB; PyTorch activation peak memory takes 1.26GiB;", "activations", 1.26),
        ("the rest of the memory reserved for KV Cache is 14.65GiB.", "available for the KV cache", 14.65),
        ("# CUDA blocks: 6001, # CPU blocks: 1638", "KV blocks", 6001),
        ("# GPU blocks: 507, # CPU blocks: 1024", "KV blocks", 507),
        ("total_gpu_memory (79.22GiB) x gpu_memory_utilization (0.90) = 71.29GiB", "total", 79.22),
        ("non-torch forward increase memory: 0.05GiB; weights memory: 14.99GiB.", "non-torch", 0.05),
        ("Available KV cache memory: -0.12 GiB", "available for the KV cache", -0.12),
        ("Graph capturing finished in 1 secs, took -0.19 GiB", "CUDA graphs taken", -0.19),
    ],
)
def test_wordings_of_other_versions(tmp_path: Path, line: str, figure: str, value: float) -> None:
    """Each figure is found as older and newer versions put it."""
    file = tmp_path / "vllm.log"
    file.write_text(f"INFO 01-16 09:40:00 worker.py:238] {line}\n")
    assert read_startup_log(file).reported[figure] == value


def test_an_eager_log_keeps_no_graphs(tmp_path: Path) -> None:
    """With enforce_eager the logged mode and sizes say nothing more."""
    file = tmp_path / "vllm.log"
    config = "model='m', enforce_eager=True, compilation_config={'cudagraph_mode': <CUDAGraphMode.NONE: 0>}"
    file.write_text(
        f"Initializing a V1 LLM engine (v0.15.1) with config: {config}\nModel loading took 14.99 GiB memory\n"
    )
    assert read_startup_log(file).engine == EngineConfig(enforce_eager=True)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    """A file without any such line, or none at all, is named."""
    file = tmp_path / "notes.txt"
    file.write_text("nothing of the sort")
    with pytest.raises(ConfigError, match="reports no memory"):
        read_startup_log(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_startup_log(tmp_path / "nowhere.log")
