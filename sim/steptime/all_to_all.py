"""What data-parallel ranks take to bring tokens to experts and back: vLLM's `--all2all-backend`.

Fitted to AIConfigurator's tables (Apache-2.0); `python -m benchmarks.fit_all_to_all` prints each fit with its errors, which are 5 to 14 % in
the median. GPUs of other architectures take the times of Hopper over their own links. Over several nodes DeepEP was measured with
InfiniBand of 400 Gb/s a GPU; what NCCL adds there is put together of messages, as sim/steptime/links.py has them.
"""

from collections.abc import Mapping
from typing import NamedTuple

from sim.specs.hardware import HardwareProfile
from sim.specs.model import Experts
from sim.steptime.links import exchange_s, nodes_of
from sim.steptime.operators import ACTIVATION_BYTES, QUANTISED_BYTES, compute_dtype
from sim.units import US

SCALE_SHARE = 1.03
"""Of a number in fp8 on its way to experts: with its scale, one of 4 bytes for 128 numbers."""


class Nccl(NamedTuple):
    """An all-gather or reduce-scatter in a node: `base_s`, `per_gpu_s` for each GPU but one, and bytes at a share of the link."""

    base_s: float
    per_gpu_s: float
    efficiency: float


class OneWay(NamedTuple):
    """DeepEP's dispatch or combine: `base_s`, and bytes at a share of the slowest link on their way."""

    base_s: float
    efficiency: float


class OneWays(NamedTuple):
    """There and back."""

    dispatch: OneWay
    combine: OneWay


class DeepEP(NamedTuple):
    """On one node, and over several, where the network is the slowest link."""

    near: OneWays
    far: OneWays


NCCL: Mapping[str, Nccl] = {
    "Ampere": Nccl(10.6 * US, 0.9 * US, 0.51),
    "Hopper": Nccl(5.6 * US, 0.95 * US, 0.56),
    "Blackwell": Nccl(8.2 * US, 1.4 * US, 0.51),
}
FAR_LOW_LATENCY = OneWays(OneWay(24.5 * US, 0.96), OneWay(25.8 * US, 0.93))
LOW_LATENCY: Mapping[str, DeepEP] = {
    "Hopper": DeepEP(OneWays(OneWay(11.0 * US, 0.61), OneWay(10.8 * US, 0.55)), FAR_LOW_LATENCY),
    "Blackwell": DeepEP(OneWays(OneWay(19.2 * US, 0.57), OneWay(18.4 * US, 0.73)), FAR_LOW_LATENCY),
}
FAR_HIGH_THROUGHPUT = OneWays(OneWay(85 * US, 0.65), OneWay(112 * US, 0.6))
"""Means of 2, 4 and 8 nodes, which differ by 40 %."""
HIGH_THROUGHPUT: Mapping[str, DeepEP] = {
    "Hopper": DeepEP(OneWays(OneWay(27.3 * US, 0.63), OneWay(38.6 * US, 0.66)), FAR_HIGH_THROUGHPUT),
    "Blackwell": DeepEP(OneWays(OneWay(36.8 * US, 0.29), OneWay(47.4 * US, 0.35)), FAR_HIGH_THROUGHPUT),
}
NVLINK: Mapping[str, OneWays] = {
    "flashinfer_nvlink_two_sided": OneWays(OneWay(25 * US, 0.53), OneWay(13 * US, 0.49)),
    "flashinfer_nvlink_one_sided": OneWays(OneWay(16 * US, 0.72), OneWay(20 * US, 0.94)),
}
"""Of TensorRT-LLM's kernels on GB200, which FlashInfer has; the first counts what prepares it."""
MEASURED_ELSEWHERE = "Hopper"


class Way(NamedTuple):
    """One way of a layer's tokens: what it takes whatever their number, and by their bytes."""

    base_s: float
    bytes_s: float


class AllToAll:
    """Dispatch and combine of one layer's tokens among the GPUs of its experts, by the tokens of all ranks.

    These lie side by side, or on so many `nodes`, so many on each. `kernels_write` the bytes themselves, over NVLink, where low-latency ones of several nodes leave that to the network.
    """

    def __init__(
        self, experts: Experts, num_gpus: int, gpu: HardwareProfile, backend: str, nodes: tuple[int, int] | None = None
    ) -> None:
        self._num_gpus = num_gpus
        self._gpu = gpu
        self._hidden_size = experts.hidden_size
        self._choices = experts.num_experts_per_tok
        self._sends_fp8 = compute_dtype(experts.weight, gpu) in QUANTISED_BYTES
        self._nodes = nodes or nodes_of(num_gpus, gpu)
        self._num_nodes, _ = self._nodes
        self._fit = _fit(backend, gpu, is_near=self._num_nodes == 1)
        self._sends_each = backend == "deepep_low_latency"
        self.kernels_write = self._sends_each and self._num_nodes == 1

    def seconds(self, num_all_tokens: float) -> float:
        """There and back."""
        if self._fit is None:
            gathered_bytes = num_all_tokens * self._hidden_size * ACTIVATION_BYTES
            return 2 * gathered_s(gathered_bytes, self._num_gpus, self._gpu, self._nodes)
        dispatch, combine = self.ways(num_all_tokens)
        return dispatch.base_s + dispatch.bytes_s + combine.base_s + combine.bytes_s

    def ways(self, num_all_tokens: float) -> tuple[Way, Way]:
        """There, and back, with kernels that are measured one way at a time: not NCCL's."""
        assert self._fit is not None, "NCCL's collectives are alike both ways"
        there, back = self._fit
        numbers = num_all_tokens / self._num_gpus * self._hidden_size * self._num_copies
        bytes_per_s = self._gpu.link_bytes_per_s if self._num_nodes == 1 else self._gpu.network_bytes_per_s
        there_bytes = numbers * (SCALE_SHARE if self._sends_fp8 else ACTIVATION_BYTES)
        return (
            Way(there.base_s, there_bytes / (bytes_per_s * there.efficiency)),
            Way(back.base_s, numbers * ACTIVATION_BYTES / (bytes_per_s * back.efficiency)),
        )

    @property
    def _num_copies(self) -> float:
        """How often a token goes over the slowest link: to each of its experts, or once to each GPU, or node, that has any."""
        num_nodes = self._num_nodes
        leaving = 1.0 if num_nodes == 1 else (num_nodes - 1) / num_nodes
        if self._sends_each:
            return self._choices * leaving
        return num_reached(self._choices, self._num_gpus if num_nodes == 1 else num_nodes) * leaving


def num_reached(num_choices: float, num_places: int) -> float:
    """Of so many equal places, those with at least one of the experts that a token chooses."""
    missed: float = (1 - 1 / num_places) ** num_choices
    return num_places * (1 - missed)


def gathered_s(
    gathered_bytes: float, num_gpus: int, gpu: HardwareProfile, nodes: tuple[int, int] | None = None
) -> float:
    """Collecting the parts of a message from GPUs with NCCL, or adding up and sharing them out again.

    They lie side by side, or on so many `nodes`, so many on each.
    """
    num_nodes, num_inside = nodes or nodes_of(num_gpus, gpu)
    fit = NCCL.get(gpu.architecture, NCCL[MEASURED_ELSEWHERE])
    on_the_wire_s = gathered_bytes * (num_inside - 1) / num_inside / gpu.all_reduce_bytes_per_s(num_inside)
    within_s = fit.base_s + fit.per_gpu_s * (num_inside - 1) + on_the_wire_s / fit.efficiency
    return within_s if num_nodes == 1 else within_s + exchange_s(gathered_bytes / num_gpus, num_nodes, gpu)


def _fit(backend: str, gpu: HardwareProfile, *, is_near: bool) -> OneWays | None:
    """None for NCCL's collectives."""
    table = {"deepep_low_latency": LOW_LATENCY, "deepep_high_throughput": HIGH_THROUGHPUT}.get(backend)
    if table is None:
        return NVLINK.get(backend)
    found = table.get(gpu.architecture, table[MEASURED_ELSEWHERE])
    return found.near if is_near else found.far
