"""Which weights stay in host memory.

Mirrors vllm/model_executor/offloader (0.33). With `--cpu-offload-gb` the parameters of decoder layers move in order until they have
as many bytes, the last one wholly; the GPU reads them where they are. With `--offload-group-size` the last layers of each group
move wholly; each is copied into one of `offload_prefetch_step` buffers as many offloaded layers ahead, and that wins over the other
unless `--offload-backend` says so. Of either, parameters may be chosen by parts of their names. Deliberate differences: a matrix's
scales move with it; and a draft model stays on the GPU, where vLLM goes on with its layers if bytes are left.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sim.specs.engine import EngineConfig, ResolvedEngine
from sim.specs.model import Experts, Layer, Linear, ModelSpec
from sim.specs.sharding import layer_on_rank
from sim.specs.stages import Stage
from sim.units import GIB

NORM_BYTES = 2  # of each number that is no matrix
Weight = Linear | Experts


class HostWeights(NamedTuple):
    """`read` are matrices that the GPU reads from host memory, and how many layers' worth of each.

    `copied` are the places of layers that are copied, of `layer_bytes` each on average. `num_bytes` leave the GPU, of which
    `buffer_bytes` come back for the layers on their way, of which there are `prefetch_step`.
    """

    num_layers: int
    read: Mapping[Weight, float]
    copied: tuple[int, ...] = ()
    layer_bytes: float = 0.0
    num_bytes: int = 0
    buffer_bytes: int = 0
    prefetch_step: int = 1


def host_weights(layers: Sequence[Layer], engine: EngineConfig) -> HostWeights | None:
    """Of these layers as one GPU holds them; None where all stay on the GPU."""
    if engine.weight_offload == "prefetch":
        return _copied(layers, engine)
    return _read(layers, engine) if engine.weight_offload == "uva" else None


def offloaded(model: ModelSpec, engine: ResolvedEngine, stage: Stage) -> HostWeights | None:
    """Of a pipeline stage, on each of its GPUs."""
    if engine.weight_offload is None:
        return None
    return host_weights([layer_on_rank(layer, engine) for layer in model.layers[stage.start : stage.stop]], engine)


class Parameter(NamedTuple):
    """One of a layer: its name, empty for all that are no matrices; its matrix and the share of it; and its bytes."""

    name: str
    weight: Weight | None
    share: float
    num_bytes: int

    def is_among(self, chosen: Collection[str]) -> bool:
        """Whether its name has one of these between dots; all parameters are among none."""
        return not chosen or any(f".{one}." in f".{self.name}." for one in chosen)


def _read(layers: Sequence[Layer], engine: EngineConfig) -> HostWeights:
    read: defaultdict[Weight, float] = defaultdict(float)
    num_bytes, most_bytes = 0, engine.cpu_offload_gb * GIB
    for layer in layers:
        for parameter in _parameters(layer):
            if num_bytes >= most_bytes:
                return HostWeights(len(layers), read, num_bytes=num_bytes)
            if not parameter.is_among(engine.cpu_offload_params):
                continue
            num_bytes += parameter.num_bytes
            if parameter.weight is not None:
                read[parameter.weight] += parameter.share  # experts are two parameters
    return HostWeights(len(layers), read, num_bytes=num_bytes)


def _parameters(layer: Layer) -> Iterator[Parameter]:
    """In order. Gate and up of the experts are one, down another; scales count as part of their matrix."""
    for linear in layer.linears:
        yield Parameter(f"{linear.name}.weight", linear, 1, linear.num_bytes)
    if layer.experts:
        down = 1 / layer.experts.num_matrices
        for name, share in (("w13_weight", 1 - down), ("w2_weight", down)):
            yield Parameter(f"experts.{name}", layer.experts, share, round(share * layer.experts.num_bytes))
    yield Parameter("", None, 1, NORM_BYTES * layer.num_other_parameters)


def unknown_params(layers: Iterable[Layer], chosen: Collection[str]) -> tuple[list[str], list[str]]:
    """Of the names chosen those that no matrix has, and all that there are."""
    named = [parameter for layer in layers for parameter in _parameters(layer) if parameter.name]
    unknown = [one for one in chosen if not any(parameter.is_among((one,)) for parameter in named)]
    return unknown, list(dict.fromkeys(segment for parameter in named for segment in parameter.name.split(".")))


def _copied(layers: Sequence[Layer], engine: EngineConfig) -> HostWeights:
    size, num_in_group, ahead = engine.offload_group_size, engine.offload_num_in_group, engine.offload_prefetch_step
    moved = {
        place: found
        for place, layer in enumerate(layers)
        if place % size >= size - num_in_group
        and (found := [one for one in _parameters(layer) if one.is_among(engine.offload_params)])
    }
    num_bytes = sum(one.num_bytes for found in moved.values() for one in found)
    buffer_bytes = ahead * sum(one.num_bytes for one in {one for found in moved.values() for one in found})
    mean_bytes = num_bytes / max(1, len(moved))
    return HostWeights(len(layers), {}, tuple(moved), mean_bytes, num_bytes, buffer_bytes, ahead)
