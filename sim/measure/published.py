"""What publishers of measured runs say elsewhere of their servers: scripts, and the versions of vLLM that they ran.

InferenceX publishes the scripts that it measures with (SemiAnalysisAI/InferenceX, benchmarks), when they changed (perf-changelog.yaml), and before
it wrote versions down, the images (.github/workflows/70b-tmpl.yml, .github/configs/master.json): all of vLLM 0.10.2 while its models and
numbers of GPUs were those of its runs without a version.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sim.measure.runs import ClosedLoop, Run

SOURCE = "InferenceX"
UNKNOWN = "vllm unknown"
FIRST_MODEL, FIRST_IMAGE = "Llama-3.1-70B", "vllm 0.10.2"
ROOM = 256  # tokens beyond the longest request: MAX_MODEL_LEN is the caller's, and but for room means nothing
DECODE_GRAPHS = {"cudagraph_mode": "FULL_DECODE_ONLY", "max_num_seqs": 512}


class Server(NamedTuple):
    """What was measured: a model's name, its weights and its GPU."""

    model: str
    precision: str | None
    gpu: str


def completed(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The runs, each with what its source says elsewhere of a server whose arguments or version the file leaves open."""
    return tuple(_completed(run) if run.source.startswith(SOURCE) else run for run in runs)


def _completed(run: Run) -> Run:
    is_first = run.engine_version == UNKNOWN and server_of(run).model == FIRST_MODEL
    version = FIRST_IMAGE if is_first else run.engine_version
    return run.model_copy(update={"engine": {**run.engine, **(scripted(run) or {})}, "engine_version": version})


def server_of(run: Run) -> Server:
    """The run's."""
    return Server(run.model.rpartition("/")[2], run.weights_precision or "bf16", run.gpu)


def scripted(run: Run) -> dict[str, Any] | None:
    """The arguments that the script of that model, precision and GPU has beyond those that are known; None where there is no script.

    Kimi's and MiniMax's in fp8 have no data parallelism, and before August Kimi's has no expert parallelism, whatever a run is labelled.
    MiniMax's in fp8 has Triton's experts with 0.17, of which B200 has no tables; gpt-oss's sets VLLM_MXFP4_USE_MARLIN=1 on Hopper; before there were versions vLLM had
    no other kernels there (triton_kernels came later), and graphs of decodes in pieces, which the newest one's arguments say here.
    """
    if not isinstance(run.workload, ClosedLoop):
        return None
    if run.engine_args_known:
        return _beyond_known(server_of(run))
    prompt, concurrency = run.workload.prompt_tokens.uniform[1], run.workload.concurrency
    bounded = {"gpu_memory_utilization": 0.9, "max_model_len": prompt + run.workload.output_tokens.uniform[1] + ROOM}
    wide = {
        **bounded,
        "kv_cache_dtype": "fp8",
        "max_cudagraph_capture_size": 2048,
        "max_num_batched_tokens": 2 * prompt,
    }
    in_one = {"tensor_parallel_size": _num_gpus(run), "data_parallel_size": 1}
    first = {**bounded, "gpu_memory_utilization": 0.95, "block_size": 32, "enable_expert_parallel": True}
    minimax_fp4 = {**bounded, "max_num_seqs": concurrency} if "nightly" in run.engine_version else wide
    minimax_fp8 = first if run.vllm_version == "0.17.0" else {**wide, **in_one, "block_size": 32}
    of_the_day = {**bounded, "kv_cache_dtype": "fp8"} if _is_before_long_graphs(run) else wide
    kimi_fp4 = {**of_the_day, **in_one, "max_num_seqs": concurrency, "enable_expert_parallel": False}
    kimi_int4 = {**bounded, "gpu_memory_utilization": 0.95, "max_num_seqs": concurrency}
    gpt_oss: dict[str, Any] = {**bounded, "max_num_batched_tokens": 8192, "max_cudagraph_capture_size": 2048}
    marlin = {**gpt_oss, "max_num_seqs": concurrency, "moe_backend": "marlin"}
    if run.engine_version == UNKNOWN:
        marlin |= {"max_cudagraph_capture_size": 1024, "cudagraph_mode": "PIECEWISE"}
    else:
        gpt_oss["kv_cache_dtype"] = "fp8"
    decoding = {**DECODE_GRAPHS, "max_num_batched_tokens": 8192}
    arguments: Mapping[Server, dict[str, Any]] = {
        **{Server("MiniMax-M2.5", "fp4", gpu): minimax_fp4 for gpu in ("b200-sxm", "b300-sxm")},
        **{Server("MiniMax-M2.5", "fp8", gpu): minimax_fp8 for gpu in ("b200-sxm", "b300-sxm")},
        Server("MiniMax-M2.5", "fp8", "h100-sxm"): {"gpu_memory_utilization": 0.9},
        **{Server("Kimi-K2.5", "fp4", gpu): kimi_fp4 for gpu in ("b200-sxm", "b300-sxm")},
        Server("Kimi-K2.5", "int4", "b200-sxm"): {"gpu_memory_utilization": 0.97},
        Server("Kimi-K2.5", "int4", "h200-sxm"): kimi_int4,
        Server("gpt-oss-120b", "fp4", "b200-sxm"): {**gpt_oss, "max_num_seqs": 512},
        **{Server("gpt-oss-120b", "fp4", gpu): marlin for gpu in ("h100-sxm", "h200-sxm")},
        Server("Llama-3.1-70B", "fp4", "b200-sxm"): {**bounded, "kv_cache_dtype": "fp8", **decoding},
    }
    return arguments.get(server_of(run))


def _is_before_long_graphs(run: Run) -> bool:
    """Kimi's script got graphs for prompts, and fewer tokens a step, in April (InferenceX #1047).

    Of the runs before, AIConfigurator's sample dates those on B200 to 27 March, all labelled as expert-parallel, and those on B300 to
    3 April. Their KV cache had 8 bits as the checkpoint asks for it.
    """
    is_labelled = bool(run.engine.get("enable_expert_parallel"))
    return run.vllm_version == "0.17.0" and (is_labelled or run.gpu == "b300-sxm")


def _beyond_known(server: Server) -> dict[str, Any] | None:
    """What 70b_fp8_b200_docker.sh has beside its known arguments; those of H100 and H200 have no more."""
    return DECODE_GRAPHS if server == Server("Llama-3.1-70B", "fp8", "b200-sxm") else None


def _num_gpus(run: Run) -> int:
    ranks: int = run.engine["tensor_parallel_size"] * run.engine.get("data_parallel_size", 1)
    return ranks
