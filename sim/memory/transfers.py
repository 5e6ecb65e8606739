"""What it takes to move KV between GPUs of two replicas, or between GPU and CPU: bytes, descriptors, and their costs.

Follows vLLM's NIXL connector in pull mode: each GPU of the receiving replica reads its own share of the heads, blocks that it
holds already are not sent, and of a sliding window only the blocks that the next token looks at. A drafter's layers go along. A
descriptor is one block of one layer's keys or values. Deliberate difference: all descriptors of a transfer are posted one after
the other, whatever the transport, and the cost of one is the same on every GPU.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sim.memory.kv_cache import KVGroup
from sim.memory.parameters import Fitted
from sim.specs.hardware import HardwareProfile
from sim.specs.model import ceil_div

PATH = Path(__file__).with_name("transfers.json")
IN_ONE_PIECE = {"mla", "linear"}
"""Kinds of layers that keep a latent vector or a state, where others keep keys and values apart."""


@dataclass(frozen=True, slots=True)
class TransferParameters:
    """Seconds that a descriptor adds, and the share of PCIe's peak that copies reach one way."""

    descriptor_s: Fitted
    pcie_efficiency: Fitted


@cache
def transfer_parameters() -> TransferParameters:
    """The numbers that come with the package; benchmarks/fit_transfers.py writes them."""
    data = json.loads(PATH.read_text())
    return TransferParameters(**{name: Fitted(row["value"], row["source"]) for name, row in data.items()})


class Load(NamedTuple):
    """What one transfer moves: bytes in all, and descriptors that each receiving GPU posts."""

    num_bytes: int
    num_descriptors: int


@dataclass(frozen=True, slots=True)
class ReplicaKV:
    """The KV cache of a replica: its groups as one GPU has them, and the GPUs that share its heads."""

    groups: tuple[KVGroup, ...]
    num_gpus: int

    def pulled(self, num_local_tokens: int, num_tokens: int, *, sender_gpus: int) -> Load:
        """What this replica reads for a prompt of `num_tokens`, of which it holds the first `num_local_tokens`.

        Where the sender has more GPUs, each of its own holds part of what one here needs, and takes descriptors of its own.
        """
        blocks = [_num_blocks(group, num_local_tokens, num_tokens) for group in self.groups]
        num_reads = sum(n * _regions(group) for n, group in zip(blocks, self.groups, strict=True))
        return Load(self._num_bytes(blocks), num_reads * max(1, sender_gpus // self.num_gpus))

    def pulled_from_host(self, num_local_tokens: int, num_tokens: int) -> Load:
        """The same from and into host memory, where a block lies in one piece with all layers of its group."""
        blocks = [_num_blocks(group, num_local_tokens, num_tokens) for group in self.groups]
        return Load(self._num_bytes(blocks), sum(blocks))

    def _num_bytes(self, blocks: Sequence[int]) -> int:
        """Of so many blocks of each group, on all GPUs."""
        return sum(n * group.bytes_per_block for n, group in zip(blocks, self.groups, strict=True)) * self.num_gpus

    @property
    def is_stored_by_block(self) -> bool:
        """Whether a store has blocks of each group by itself: all that is known of a prefix does not lie in one."""
        return len(self.groups) > 1 or self.groups[0].window is not None

    @property
    def bytes_per_block(self) -> int:
        """Of one block on all GPUs, of whichever group it serves."""
        return self.num_gpus * max(group.bytes_per_block for group in self.groups)


def _num_blocks(group: KVGroup, num_local_tokens: int, num_tokens: int) -> int:
    """Blocks of a group that hold what the token after `num_tokens` looks at, without those before `num_local_tokens`."""
    if group.kind == "linear":
        return 1
    first_token = num_local_tokens
    if group.window is not None:
        first_token = max(first_token, num_tokens - (group.window - 1))
    return max(0, ceil_div(num_tokens, group.block_size) - first_token // group.block_size)


def _regions(group: KVGroup) -> int:
    """Of a block, in all layers."""
    own = group.num_layers if group.kind in IN_ONE_PIECE else 2 * group.num_layers
    return own + sum(1 if cache.kind in IN_ONE_PIECE else 2 for cache in group.drafting)


def copied_bytes_per_s(gpu: HardwareProfile) -> float:
    """Of one GPU through its PCIe port, one way: to the CPU, or to other machines by a network card of its own."""
    return gpu.pcie_bytes_per_s * transfer_parameters().pcie_efficiency.value
