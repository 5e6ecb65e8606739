"""The facets by which a measured run resembles a forecast, and those that no measured run shares."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import log2
from typing import Any, NamedTuple

from sim.deployment import Deployment
from sim.errors import ProfileError
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile, load_gpu
from sim.specs.model import ModelSpec
from sim.specs.operator_fits import Basis
from sim.specs.releases import is_newer_than_known, parse_version
from sim.steptime.options import Composition

LIKE_NUMBERS = 2.0  # sizes, lengths and batches within this factor are alike
MOSTLY = 0.5  # of the prompts' tokens found in the prefix cache
NOT_FIGURES = (
    "label",
    "aliases",
    "confidence",
    "price_usd_per_hour",
    "price_source",
    "derived",
    "source",
)  # of a profile: they time nothing


ONE_NODE = "one node"
NOTHING_BESIDE = "all on the GPU"
NOT_ON_ONE_NODE = ("gpus_per_node", "network_gb_s", "operators.messages")


class Regime(NamedTuple):
    """The load on the engine during a replay: whether prompts came from the prefix cache, and means of their tokens, of the
    context that a generated token saw, and of the requests that decoded in a step. `p1_arrival_s` and `p5_arrival_s`: when,
    after the first one, so many per cent of the requests had arrived; None: not known.
    """

    is_cached: bool
    prompt_tokens: float
    context_tokens: float
    batch: float
    p1_arrival_s: float | None = None
    p5_arrival_s: float | None = None


class Traits(NamedTuple):
    """The facets of a run. `vllm_version` None: not known; `regime` None: not replayed yet."""

    gpu: str
    family: str
    dtype: str
    active_parameters_per_gpu: float
    has_experts: bool = False
    kernels: Basis = "fitted"
    kv_dtype: str = "auto"
    execution: str = "graphs"
    vllm_version: str | None = None
    is_newer_than_known: bool = False
    derived: tuple[str, ...] = ()
    composition: Composition = "additive"
    speculation: str = "none"
    regime: Regime | None = None
    layout: str = ONE_NODE
    beside: str = NOTHING_BESIDE


class Facet(NamedTuple):
    """One facet that similar runs share: texts and whole values are equal, numbers are near."""

    name: str
    value: Callable[[Traits], str | float | None]
    words: Callable[[Traits], str]


def _of_regime(value: Callable[[Regime], str | float]) -> Callable[[Traits], str | float | None]:
    return lambda of: value(of.regime) if of.regime else None


FACETS = (
    Facet("gpu", lambda of: of.gpu, lambda of: f"GPU {of.gpu}"),
    Facet("family", lambda of: of.family, lambda of: f"{of.family} models"),
    Facet("dtype", lambda of: of.dtype, lambda of: f"{of.dtype} weights"),
    Facet(
        "size",
        lambda of: of.active_parameters_per_gpu,
        lambda of: f"{of.active_parameters_per_gpu / 1e9:.2g} G active parameters a GPU",
    ),
    Facet("kv_dtype", lambda of: of.kv_dtype, lambda of: f"a KV cache in {of.kv_dtype}"),
    Facet(
        "execution", lambda of: of.execution, lambda of: "steps without CUDA graphs" if of.execution == "eager" else "CUDA graphs"
    ),
    Facet("vllm_version", lambda of: of.vllm_version, lambda of: f"vLLM {of.vllm_version}"),
    Facet("speculation", lambda of: of.speculation, lambda of: f"drafts by {of.speculation}"),
    Facet("composition", lambda of: of.composition, lambda of: f"mixed steps timed as {of.composition}"),
    Facet("layout", lambda of: of.layout, lambda of: of.layout),
    Facet("beside", lambda of: of.beside, lambda of: of.beside),
    Facet(
        "prompts",
        _of_regime(lambda regime: "cached" if regime.is_cached else "computed"),
        lambda of: "cached prompts" if of.regime and of.regime.is_cached else "prompts that are not cached",
    ),
    Facet(
        "prompt_tokens",
        _of_regime(lambda regime: regime.prompt_tokens),
        lambda of: f"prompts of {_count(of, 'prompt_tokens')} tokens",
    ),
    Facet(
        "context_tokens",
        _of_regime(lambda regime: regime.context_tokens),
        lambda of: f"contexts of {_count(of, 'context_tokens')} tokens",
    ),
    Facet("batch", _of_regime(lambda regime: regime.batch), lambda of: f"batches of {_count(of, 'batch')} requests"),
)  # fmt: skip
SOFT = "vllm_version"  # a known version that was not measured widens the band; its rules are known, so it is no extrapolation


def _count(of: Traits, name: str) -> str:
    return f"{getattr(of.regime, name):,.0f}"


def traits(
    model: ModelSpec,
    gpu: HardwareProfile,
    engine: ResolvedEngine,
    regime: Regime | None = None,
    *,
    composition: Composition = "additive",
) -> Traits:
    """The facets of a deployment under a load, with mixed steps timed by `composition`."""
    major, minor, _ = parse_version(engine.vllm_version)
    return Traits(
        gpu=_gpu(gpu),
        family=model.model_type,
        dtype=model.quantization or "bf16",
        active_parameters_per_gpu=float(model.num_active_parameters / engine.num_gpus),
        has_experts=model.has_experts,
        kernels=gpu.operators.gemm["bf16"].basis,
        kv_dtype="fp8" if engine.kv_cache_dtype.startswith("fp8") else engine.kv_cache_dtype,
        execution="eager" if engine.cudagraph_mode == "NONE" else "graphs",
        vllm_version=f"{major}.{minor}",
        is_newer_than_known=is_newer_than_known(engine.vllm_version),
        derived=_derived(model, gpu, engine),
        composition=composition,
        speculation=engine.speculation.method if engine.speculation else "none",
        regime=regime,
        layout=_layout(model, gpu, engine),
    )


def _layout(model: ModelSpec, gpu: HardwareProfile, engine: ResolvedEngine) -> str:
    """Whether layers lie on stages or ranks wait for each other, and whether the network counts."""
    num_ranks = engine.data_parallel_size if model.has_experts else 1
    stages = "pipeline stages" if engine.pipeline_parallel_size > 1 else ""
    ranks = "ranks in lock step" if num_ranks > 1 else ""
    nodes = "several nodes" if num_ranks * engine.num_gpus > gpu.num_gpus_together else ""
    return " over ".join(filter(None, (stages, ranks, nodes))) or ONE_NODE


def _derived(model: ModelSpec, gpu: HardwareProfile, engine: ResolvedEngine) -> tuple[str, ...]:
    """What was derived and counts: messages and the network do where there are stages, ranks in lock step or several nodes."""
    if _layout(model, gpu, engine) != ONE_NODE:
        return gpu.derived
    return tuple(name for name in gpu.derived if name not in NOT_ON_ONE_NODE)


def traits_of(deployment: Deployment, metrics: Mapping[str, Any] | None = None) -> Traits:
    """The facets of a deployment; with its figures, also those of the load."""
    of, load = deployment, regime(metrics) if metrics else None
    found = traits(of.model, of.gpu, of.engine, load, composition=of.step_times.composition)
    return found._replace(beside=_beside(deployment))


def _beside(of: Deployment) -> str:
    """What is loaded, read or kept beside a model and its KV cache that lie on the GPU."""
    has = {
        "dual-batch overlap": of.lock_step is not None and of.engine.enable_dbo,
        "LoRA adapters": of.engine.enable_lora,
        "weights in host memory": of.engine.weight_offload is not None,
        "KV in host memory": of.offload is not None or of.host_kv is not None,
        "a what-if": bool(of.engine.what_ifs),
    }
    return " and ".join(name for name, is_there in has.items() if is_there) or NOTHING_BESIDE


def regime(metrics: Mapping[str, Any]) -> Regime | None:
    """The load of a replay, from its summary; None if nothing was completed."""
    if not metrics["completed"] or not metrics["num_steps"]:
        return None
    count, output_tokens = metrics["completed"], metrics["total_output_tokens"]
    prompt_tokens = metrics["total_input_tokens"] / count
    tokens_a_step = metrics.get("spec_decode_acceptance_length") or 1.0
    return Regime(
        is_cached=(metrics["prefix_cache_hit_rate"] or 0.0) >= MOSTLY,
        prompt_tokens=prompt_tokens,
        context_tokens=prompt_tokens + output_tokens / count / 2,
        batch=max(1.0, (output_tokens - count) / tokens_a_step / metrics["num_steps"]),
        p1_arrival_s=metrics.get("p1_arrival_s"),
        p5_arrival_s=metrics.get("p5_arrival_s"),
    )


def _gpu(gpu: HardwareProfile) -> str:
    """Its name, if its figures equal those of the built-in profile of that name."""
    built_in = _built_in(gpu.name)
    is_it = built_in is not None and all(
        getattr(gpu, name) == getattr(built_in, name) for name in gpu.__slots__ if name not in NOT_FIGURES
    )
    return gpu.name if is_it else f"{gpu.name} with figures of its own" if built_in else gpu.name


@lru_cache(maxsize=64)
def _built_in(name: str) -> HardwareProfile | None:
    try:
        return load_gpu(name)
    except ProfileError:
        return None


class Novelty(NamedTuple):
    """What no measured run shares: facets that none has, and those that the nearest runs lack though others have them.

    `degree` counts them, a number that lies beyond all measured by its doublings. `num_like` runs share everything.
    """

    never: tuple[Facet, ...]
    apart: tuple[Facet, ...]
    degree: float
    num_like: int


def novelty(of: Traits, known: Sequence[Traits]) -> Novelty:
    """Against all runs known, of which there is at least one."""
    unlike = [[facet for facet in FACETS if not shares(facet, of, other)] for other in known]
    never = tuple(facet for facet in unlike[0] if all(facet in facets for facets in unlike))
    lacking = [[facet for facet in facets if facet not in never] for facets in unlike]
    fewest = min(map(len, lacking))
    apart = tuple(next(missing for missing in lacking if len(missing) == fewest))
    degree = sum(_doublings(facet, of, known) for facet in never) + len(apart)
    return Novelty(never, apart, degree, 0 if never else sum(not missing for missing in lacking))


def shares(facet: Facet, of: Traits, other: Traits) -> bool:
    """Whether both are similar in it; an unknown value of the first counts as similar."""
    one, two = facet.value(of), facet.value(other)
    if one is None:
        return True
    if isinstance(one, float) and isinstance(two, float):
        return 1 / LIKE_NUMBERS <= one / two <= LIKE_NUMBERS
    return one == two


def _doublings(facet: Facet, of: Traits, known: Sequence[Traits]) -> float:
    """How often the largest that was measured must be doubled to reach a number; 1 for what is no number, or smaller."""
    value = facet.value(of)
    if not isinstance(value, float):
        return 1.0
    largest = max(other for other in map(facet.value, known) if isinstance(other, float))
    return max(1.0, log2(value / largest))
