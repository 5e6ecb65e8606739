"""Which weights stay in host memory.

Mirrors vllm/model_executor/offloader (0.33). With `--cpu-offload-gb` the parameters of decoder layers move in order until they have
as many bytes, the last one wholly; the GPU reads them where they are. With `--offload-group-size` the last layers of each group
move wholly; each is copied into one of `offload_prefetch_step` buffers as many offloaded layers ahead, and that wins over the other.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sim.specs.engine import EngineConfig
from sim.specs.model import Experts, Layer, Linear
from sim.units import GIB

NORM_BYTES = 2  # of each number that is no matrix
Weight = Linear | Experts


class HostWeights(NamedTuple):
    """`read` are matrices that the GPU reads from host memory, and how many layers' worth of each.

    `copied` are the places of layers that are copied, of `layer_bytes` each on average. `num_bytes` leave the GPU, of which
    `buffer_bytes` come back for the layers on their way, of which there are `prefetch_step`.
    """

    num_layers: int
    read: Counter[Weight]
    copied: tuple[int, ...] = ()
    layer_bytes: float = 0.0
    num_bytes: int = 0
    buffer_bytes: int = 0
    prefetch_step: int = 1


def host_weights(layers: Sequence[Layer], engine: EngineConfig) -> HostWeights | None:
    """Of these layers as one GPU holds them; None where all stay on the GPU."""
    if engine.offload_group_size:
        return _copied(layers, engine)
    return _read(layers, engine.cpu_offload_gb * GIB) if engine.cpu_offload_gb else None


def _read(layers: Sequence[Layer], most_bytes: float) -> HostWeights:
    read: Counter[Weight] = Counter()
    num_bytes = 0
    for layer in layers:
        for weight, share, size in _parameters(layer):
            if num_bytes >= most_bytes:
                return HostWeights(len(layers), read, num_bytes=num_bytes)
            num_bytes += size
            if weight is not None:
                read[weight] += share  # type: ignore[assignment]  # experts are two parameters
    return HostWeights(len(layers), read, num_bytes=num_bytes)


def _parameters(layer: Layer) -> Iterator[tuple[Weight | None, float, int]]:
    """Each parameter in order: its matrix and the share of it, and its bytes. Gate and up of the experts are one, down another."""
    for linear in layer.linears:
        yield linear, 1, linear.num_bytes
    if layer.experts:
        down = 1 / layer.experts.num_matrices
        for share in (1 - down, down):
            yield layer.experts, share, round(share * layer.experts.num_bytes)
    yield None, 1, NORM_BYTES * layer.num_other_parameters


def _copied(layers: Sequence[Layer], engine: EngineConfig) -> HostWeights:
    size, num_in_group, ahead = engine.offload_group_size, engine.offload_num_in_group, engine.offload_prefetch_step
    places = tuple(place for place in range(len(layers)) if place % size >= size - num_in_group)
    moved = [layers[place] for place in places]
    num_bytes = sum(layer.num_bytes for layer in moved)
    buffer_bytes = ahead * sum(size for _, _, size in {part for layer in moved for part in _parameters(layer)})
    mean_bytes = num_bytes / max(1, len(moved))
    return HostWeights(len(layers), Counter(), places, mean_bytes, num_bytes, buffer_bytes, ahead)
