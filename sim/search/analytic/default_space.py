"""The space that is searched if none is given, derived from the workload as the autotuning design describes."""

from sim.errors import ConfigError
from sim.search.analytic.performance_model import get_vllm_default_capture_sizes
from sim.search.analytic.workload_profile import WorkloadProfile
from sim.search.blueprint import RANKS, REPLICAS, SERVED_RANKS, STAGES
from sim.search.evaluate import Scenario
from sim.search.space import Space
from sim.specs.autotuning import AutotuningParameters
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ModelSpec

MODEL_LENGTHS = (1024, 2048, 4096, 8192, 16384)
CONSERVATIVE_SIZES = (1, 2, 4)
BALANCED_LIMIT, AGGRESSIVE_LIMIT = 32, 128
NUM_SEQS = (32, 64, 128, 256, 512)
EVERY_COUNT = 16  # up to here every number of replicas is tried
LAID_OUT_REPLICAS = 128  # a replica of eight GPUs takes some 8 MB while it is simulated
BATCHED_TOKENS = (1024, 2048, 4096, 8192, 16384)


def default_space(
    scenario: Scenario,
    workload: WorkloadProfile,
    *,
    gpus: int | None = None,
    parameters: AutotuningParameters | None = None,
) -> Space:
    """The design's four knobs, the two that users ask about most, and ways to lay out `gpus` GPUs: ranks, stages, replicas.

    Each knob can also be left to vLLM (None). Context lengths hold every request of the trace.
    """
    limits = parameters or AutotuningParameters()
    lengths = _lengths(scenario.longest_request, scenario.model.max_model_len)
    knobs = {
        "gpu_memory_utilization": (
            None, limits.min_gpu_memory_utilization, 0.85, 0.90, 0.95, limits.max_gpu_memory_utilization
        ),
        "cudagraph_capture_sizes": (None, *dict.fromkeys((CONSERVATIVE_SIZES, *captured_sizes(workload)))),
        "enforce_eager": (None, True),
        "max_model_len": (None, *lengths),
        "max_num_seqs": (None, *NUM_SEQS),
        "max_num_batched_tokens": (None, *BATCHED_TOKENS),
    }  # fmt: skip
    if gpus is not None:
        ranks = tensor_parallel_sizes(gpus, scenario.model.num_attention_heads)
        check_gpus(gpus, ranks[-1])
        knobs |= {
            RANKS: ranks,
            STAGES: pipeline_parallel_sizes(gpus, scenario.model, scenario.gpu),
            REPLICAS: replica_counts(min(gpus, LAID_OUT_REPLICAS, len(scenario.trace))),
        }
        if scenario.model.has_experts:
            knobs |= {SERVED_RANKS: data_parallel_sizes(gpus), "enable_expert_parallel": (None, True)}
    searched = {name: values for name, values in knobs.items() if len(values) > 1}
    return Space(searched, gpus=gpus, over=scenario.blueprint)


def captured_sizes(workload: WorkloadProfile) -> list[tuple[int, ...]]:
    """The design's balanced and aggressive sizes, capped by the workload's batch sizes."""
    largest = workload.get_expected_max_batch_size(percentile=0.95)
    return [tuple(get_vllm_default_capture_sizes(min(limit, largest))) for limit in (BALANCED_LIMIT, AGGRESSIVE_LIMIT)]


def _lengths(longest: int, allowed: int) -> list[int]:
    return [length for length in MODEL_LENGTHS if longest <= length < allowed]


def tensor_parallel_sizes(most: int, num_heads: int) -> tuple[int, ...]:
    """Powers of two up to `most` that divide the number of attention heads."""
    powers = (1 << power for power in range(num_heads.bit_length()))
    return tuple(ranks for ranks in powers if ranks <= max(1, most) and num_heads % ranks == 0)


def pipeline_parallel_sizes(most: int, model: ModelSpec, gpu: HardwareProfile) -> tuple[int, ...]:
    """Powers of two up to `most`, where there are more GPUs than NVLink or the like joins: within it, ranks are faster than stages."""
    if most <= gpu.num_linked_gpus:
        return (1,)
    return tuple(1 << power for power in range(min(most, model.num_layers).bit_length()))


def data_parallel_sizes(most: int) -> tuple[int | None, ...]:
    """One, and powers of two up to `most`: engines that share out experts, each with attention and a cache of its own."""
    return (None, *(1 << power for power in range(1, max(1, most).bit_length())))


def check_gpus(gpus: int, most_ranks: int) -> None:
    """Raises ConfigError for none, and for more than are laid out."""
    if gpus < 1:
        raise ConfigError(f"--gpus must be at least 1, got {gpus}.")
    if gpus > (most := LAID_OUT_REPLICAS * most_ranks):
        raise ConfigError(
            f"--gpus must be at most {most:,} ({LAID_OUT_REPLICAS} replicas are laid out, of up to {most_ranks} GPUs for this "
            f"model's heads), got {gpus:,}; search fewer for a share of the traffic."
        )


def replica_counts(most: int) -> tuple[int, ...]:
    """Every number up to EVERY_COUNT, then four to a doubling, and `most` itself."""
    counts, step = list(range(1, min(most, EVERY_COUNT) + 1)), EVERY_COUNT // 4
    while counts[-1] < most:
        step *= 2 if counts[-1] == 8 * step else 1
        counts.append(min(most, counts[-1] + step))
    return tuple(counts)
