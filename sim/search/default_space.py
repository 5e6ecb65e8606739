"""The space that is searched where none is given: derived from the workload, as the autotuning design describes."""

from sim.search.analytic import get_vllm_default_capture_sizes
from sim.search.evaluate import Scenario
from sim.search.space import REPLICAS, Space
from sim.search.workload_profile import WorkloadProfile
from sim.specs.autotuning import AutotuningParameters
from sim.specs.hardware import HardwareProfile

MODEL_LENGTHS = (1024, 2048, 4096, 8192, 16384)
CONSERVATIVE_SIZES = (1, 2, 4)
BALANCED_LIMIT, AGGRESSIVE_LIMIT = 32, 128
NUM_SEQS = (32, 64, 128, 256, 512)
BATCHED_TOKENS = (1024, 2048, 4096, 8192, 16384)


def default_space(
    scenario: Scenario,
    workload: WorkloadProfile,
    *,
    gpus: int | None = None,
    parameters: AutotuningParameters | None = None,
) -> Space:
    """The design's four knobs, the two that users ask about most, and ways to lay out `gpus` GPUs.

    Each knob can also be left to vLLM (None). Context lengths hold every request of the trace; a cache in fp8 is tried
    where throughput is the target and the GPU computes in fp8.
    """
    limits = parameters or AutotuningParameters()
    lengths = _lengths(scenario.longest_request, scenario.model.max_model_len)
    knobs = {
        "gpu_memory_utilization": (
            None, limits.min_gpu_memory_utilization, 0.85, 0.90, 0.95, limits.max_gpu_memory_utilization
        ),
        "cudagraph_capture_sizes": (None, *_capture_sizes(workload)),
        "enforce_eager": (None, True),
        "max_model_len": (None, *lengths),
        "kv_cache_dtype": (None, "fp8_e4m3") if _tries_fp8(workload, scenario.gpu) else (None,),
        "max_num_seqs": (None, *NUM_SEQS),
        "max_num_batched_tokens": (None, *BATCHED_TOKENS),
    }  # fmt: skip
    if gpus is not None:
        knobs |= {"tensor_parallel_size": _powers_of_two(gpus), REPLICAS: tuple(range(1, gpus + 1))}
    return Space({name: values for name, values in knobs.items() if len(values) > 1}, gpus=gpus)


def _capture_sizes(workload: WorkloadProfile) -> list[tuple[int, ...]]:
    """Conservative, balanced and aggressive, as far as batches of this workload grow; each once."""
    largest = workload.get_expected_max_batch_size(percentile=0.95)
    balanced = get_vllm_default_capture_sizes(min(BALANCED_LIMIT, largest))
    aggressive = get_vllm_default_capture_sizes(min(AGGRESSIVE_LIMIT, largest))
    return list(dict.fromkeys((CONSERVATIVE_SIZES, tuple(balanced), tuple(aggressive))))


def _lengths(longest: int, allowed: int) -> list[int]:
    return [length for length in MODEL_LENGTHS if longest <= length < allowed]


def _tries_fp8(workload: WorkloadProfile, gpu: HardwareProfile) -> bool:
    return workload.target_metric == "throughput" and "fp8" in gpu.peak_flops


def _powers_of_two(most: int) -> tuple[int, ...]:
    return tuple(1 << power for power in range(most.bit_length()))
