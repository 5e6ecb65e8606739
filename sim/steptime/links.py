"""What GPUs say to each other: sums and parts of a message among all ranks of a layer, and messages from one to another.

Beyond a node the network is taken as NCCL's rings take it: within each node by the faster link, then every GPU exchanges its
share of the message with those in its place on the other nodes, in as many steps as there are other nodes. Nothing of that was
measured: it is put together of the messages between two nodes that were.
"""

from math import exp, log

from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ceil_div
from sim.specs.operator_fits import MessageFit
from sim.steptime.operators import between


def all_reduce_s(message_bytes: float, num_gpus: int, gpu: HardwareProfile) -> float:
    """The sum of a message over GPUs, inside a CUDA graph; a ring moves it 2 (N - 1) / N times."""
    num_nodes, num_inside = nodes_of(num_gpus, gpu)
    within_s = _within_node_s(message_bytes, num_inside, gpu)
    if num_nodes == 1:
        return within_s
    return within_s + 2 * exchange_s(message_bytes / num_inside / num_nodes, num_nodes, gpu)


def all_gather_s(gathered_bytes: float, num_gpus: int, gpu: HardwareProfile) -> float:
    """Collecting the parts of a message from GPUs: half the traffic of an all-reduce."""
    num_nodes, num_inside = nodes_of(num_gpus, gpu)
    within_s = _latency_s(num_inside, gpu) + _wire_s(gathered_bytes, num_inside, gpu)
    return within_s if num_nodes == 1 else within_s + exchange_s(gathered_bytes / num_gpus, num_nodes, gpu)


def message_s(num_bytes: float, first: int, second: int, gpu: HardwareProfile) -> float:
    """What the GPU of one rank sends to that of another; ranks lie in order on the nodes."""
    fits = gpu.operators.messages
    if gpu.num_linked_gpus > 1 and _are_together(first, second, gpu.num_linked_gpus):
        return _sent_s(num_bytes, fits.link, gpu.link_bytes_per_s)
    if _are_together(first, second, gpu.gpus_per_node):
        return _sent_s(num_bytes, fits.pcie, gpu.pcie_bytes_per_s)
    return _sent_s(num_bytes, fits.network, gpu.network_bytes_per_s)


def _are_together(first: int, second: int, num_gpus: int) -> bool:
    return first // num_gpus == second // num_gpus


def _sent_s(num_bytes: float, fit: MessageFit, bytes_per_s: float) -> float:
    return fit.base_s + num_bytes / (bytes_per_s * fit.efficiency)


def exchange_s(part_bytes: float, num_nodes: int, gpu: HardwareProfile) -> float:
    """A part to every other node, one after the other."""
    return (num_nodes - 1) * _sent_s(part_bytes, gpu.operators.messages.network, gpu.network_bytes_per_s)


def nodes_of(num_gpus: int, gpu: HardwareProfile) -> tuple[int, int]:
    """How many nodes so many GPUs take, and how many GPUs of each."""
    num_nodes = ceil_div(num_gpus, gpu.num_gpus_together)
    return num_nodes, ceil_div(num_gpus, num_nodes)


def nodes_of_experts(engine: ResolvedEngine, gpu: HardwareProfile) -> tuple[int, int]:
    """The same of the GPUs of one stage that share its experts: a server's engines lie one behind the other, each with all its stages."""
    num_gpus, together = engine.num_expert_ranks, gpu.num_gpus_together
    if engine.pipeline_parallel_size == 1:
        return nodes_of(num_gpus, gpu)
    if engine.num_gpus <= together:
        num_nodes = ceil_div(engine.data_parallel_size, together // engine.num_gpus)
    else:
        num_nodes = engine.data_parallel_size * ceil_div(engine.tensor_parallel_size, together)
    return num_nodes, ceil_div(num_gpus, num_nodes)


def _within_node_s(message_bytes: float, num_gpus: int, gpu: HardwareProfile) -> float:
    """By the formula, and where sums were measured as many times as long as they took."""
    by_bytes = gpu.operators.all_reduce.by_bytes
    if not by_bytes:
        return _formula_s(message_bytes, num_gpus, gpu)
    logs = []
    for number, factors in by_bytes:
        smallest, largest = factors[0][0], factors[-1][0]
        nearest = min(max(message_bytes, smallest), largest)
        points = [(size, factor * _formula_s(size, num_gpus, gpu)) for size, factor in factors]
        beyond = _formula_s(message_bytes, num_gpus, gpu) / _formula_s(nearest, num_gpus, gpu)
        logs.append((log(number), log(beyond * between(points, nearest))))
    return exp(between(logs, log(num_gpus)))


def _formula_s(message_bytes: float, num_gpus: int, gpu: HardwareProfile) -> float:
    return _latency_s(num_gpus, gpu) + 2 * _wire_s(message_bytes, num_gpus, gpu)


def _latency_s(num_gpus: int, gpu: HardwareProfile) -> float:
    fit = gpu.operators.all_reduce
    return fit.base_s + fit.per_gpu_s * (num_gpus - 1)


def _wire_s(message_bytes: float, num_gpus: int, gpu: HardwareProfile) -> float:
    bandwidth = gpu.all_reduce_bytes_per_s(num_gpus) * gpu.operators.all_reduce.link_efficiency
    return (num_gpus - 1) / num_gpus * message_bytes / bandwidth
