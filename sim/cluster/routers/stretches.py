"""What replicas hold of a prompt, stretch by stretch: few of them are added up one by one, many in columns."""

from collections.abc import Iterator, Sequence

import numpy as np

from sim.engine.records import Floats

Stretch = tuple[int, float]
"""The replicas that hold so many blocks of a prompt, as bits, and that many blocks."""


def replicas_in(mask: int) -> Iterator[int]:
    """The replicas whose bits are set."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def num_holders(stretches: Sequence[Stretch]) -> int:
    """Holders of all stretches, each counted as often as it holds one."""
    return sum([holders.bit_count() for holders, _ in stretches])


def by_replica(stretches: Sequence[Stretch]) -> dict[int, float]:
    """The blocks that each holder holds."""
    held: dict[int, float] = {}
    for holders, num_blocks in stretches:
        mask = holders
        while mask:  # as `replicas_in`, without a generator a prompt
            lowest = mask & -mask
            replica = lowest.bit_length() - 1
            held[replica] = held.get(replica, 0) + num_blocks
            mask ^= lowest
    return held


def in_columns(stretches: Sequence[Stretch], num_replicas: int) -> Floats:
    """The blocks that each replica holds, by its number."""
    held = np.zeros(num_replicas)
    for holders, num_blocks in stretches:
        if holders & (holders - 1):
            bits = np.frombuffer(holders.to_bytes(-(-num_replicas // 8), "little"), dtype=np.uint8)
            held += num_blocks * np.unpackbits(bits, count=num_replicas, bitorder="little").view(np.bool_)
        else:
            held[holders.bit_length() - 1] += num_blocks
    return held
