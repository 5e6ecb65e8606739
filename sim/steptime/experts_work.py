"""The routed experts of all layers: the kernels of the GPU that all others wait for, and what ranks exchange before and behind them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.model import Experts, Layer
from sim.specs.mxfp4 import MXFP4, Mxfp4Layout
from sim.specs.sharding import experts_on_rank
from sim.steptime.all_to_all import AllToAll
from sim.steptime.busiest_rank import busiest_rank
from sim.steptime.expert_routing import ExpertRouting, ExpertsLoad
from sim.steptime.links import nodes_of_experts
from sim.steptime.operators import Kernel, by_marlin, routed_experts
from sim.steptime.parts import Bound


class Exchange(NamedTuple):
    """Seconds that tokens are on their way to experts and back beside other kernels, and those of kernels that nothing runs beside."""

    dispatch_s: float
    combine_s: float
    dispatch_kernel_s: float
    combine_kernel_s: float


class ExpertsWork:
    """Of a pipeline stage, by the tokens of all data-parallel ranks; equal layers are timed once and multiplied.

    Slices of experts are alike on all GPUs; of whole ones, the busiest GPU counts.
    """

    def __init__(
        self, layers: Mapping[Layer, int], gpu: HardwareProfile, engine: ResolvedEngine, expert_routing: ExpertRouting
    ) -> None:
        experts: Counter[Experts] = Counter()
        for layer, count in layers.items():
            if layer.experts:
                experts[layer.experts] += count
        self._gpu = gpu
        self._engine = engine
        self._expert_routing = expert_routing
        ranks, nodes = engine.num_expert_ranks, nodes_of_experts(engine, gpu)
        self._experts = [(one, multiplied_on_rank(one, gpu, engine), count) for one, count in experts.items()]
        backend = engine.all2all_backend if engine.enable_expert_parallel else "allgather_reducescatter"
        self._exchanges = (
            [(AllToAll(one, ranks, gpu, backend, nodes), count) for one, count in experts.items()]
            if engine.data_parallel_size > 1
            else []
        )
        self.num_exchanging_layers = sum(count for _, count in self._exchanges)

    def kernels(self, num_all_tokens: int) -> list[tuple[str, Bound, float]]:
        """Each different kernel's name, bound and seconds over all layers."""
        found = self.routed(num_all_tokens)
        for exchange, count in self._exchanges:
            found.append(("all_to_all", "link", count * exchange.seconds(float(num_all_tokens))))
        return found

    def routed(self, num_all_tokens: int) -> list[tuple[str, Bound, float]]:
        """The same without what is exchanged."""
        found: list[tuple[str, Bound, float]] = []
        for whole, mine, count in self._experts:
            seconds, bound = self._kernel(float(num_all_tokens), whole, mine)
            found.append(("experts", bound, count * seconds))
        return found

    def exchange(self, num_all_tokens: int) -> Exchange:
        """What is exchanged over all layers."""
        dispatch_s = combine_s = dispatch_kernel_s = combine_kernel_s = 0.0
        for exchange, count in self._exchanges:
            dispatch, combine = exchange.ways(float(num_all_tokens))
            dispatch_s += count * dispatch.base_s
            combine_s += count * combine.base_s
            if exchange.kernels_write:
                dispatch_kernel_s += count * dispatch.bytes_s
                combine_kernel_s += count * combine.bytes_s
            else:
                dispatch_s += count * dispatch.bytes_s
                combine_s += count * combine.bytes_s
        return Exchange(dispatch_s, combine_s, dispatch_kernel_s, combine_kernel_s)

    def _kernel(self, tokens: float, whole: Experts, mine: Experts) -> Kernel:
        return routed_experts(load_of_busiest(tokens, whole, self._engine, self._expert_routing), mine, self._gpu)


def multiplied_on_rank(experts: Experts, gpu: HardwareProfile, engine: ResolvedEngine) -> Experts:
    """One GPU's share as its kernel has it: MXFP4 with zeros up to whole tiles, and what Marlin unpacks named so."""
    mine, is_marlin = experts_on_rank(experts, engine), engine.moe_backend == "marlin"
    if experts.weight.name == MXFP4:
        layout = Mxfp4Layout.of(gpu, engine)
        mine, is_marlin = layout.padded(mine), layout.kernel == "marlin"
    return replace(mine, weight=by_marlin(mine.weight)) if is_marlin else mine


def load_of_busiest(tokens: float, whole: Experts, engine: ResolvedEngine, routing: ExpertRouting) -> ExpertsLoad:
    """What the tokens of all data-parallel ranks make of a layer's experts for the GPU that all others wait for."""
    num_ranks = engine.num_expert_ranks if engine.enable_expert_parallel else 1
    return busiest_rank(tokens, whole, num_ranks, routing, engine.num_balanced_copies)
