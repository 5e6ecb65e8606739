"""How much of what decodes have in common an attention kernel reads once: `python -m benchmarks.common_reads`.

A GPU is played: each multiprocessor takes the next (decode, KV head) in line and reads its keys and values from the last token to the first, as
FlashAttention 3 does; what is in the L2, or on its way there, need not come from memory. Decodes that begin together but have answers of different lengths come to what they share
at different times, and find it as long as the L2 keeps it. Printed is, for decodes of many shapes, the share of time that this spares of what it would if all that are under way
together kept step. `IN_STEP` of sim/steptime/common_reads.py is what three of four shapes reach: the play knows of nothing but lengths that puts decodes out of step. No run of a GPU was
used; NVIDIA's H100 white paper has the sizes (the L2 is in two halves, each before half of the multiprocessors, so that what all of them read stands there twice), and FASTER_FROM_L2 is measured.
"""

import heapq
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from statistics import quantiles
from typing import NamedTuple

from sim.specs.hardware import load_gpu
from sim.steptime.common_reads import FASTER_FROM_L2, CommonReads

L2_BYTES = 25e6
PIECE_TOKENS = 64
TOKEN_BYTES = 2 * 128 * 2  # a key and a value of 128 numbers of 16 bits
GPU = load_gpu("h100-sxm")
READ_BYTES_PER_S = GPU.memory_bandwidth_bytes_per_s * GPU.operators.decode_attention.memory_efficiency
MOST_PIECES = int(L2_BYTES / (PIECE_TOKENS * TOKEN_BYTES))
PIECE_S = PIECE_TOKENS * TOKEN_BYTES / READ_BYTES_PER_S
FROM_L2_S = PIECE_S / FASTER_FROM_L2
LEAST_PIECE_S = GPU.num_sms * FROM_L2_S  # of one multiprocessor, which has its share of what comes from the L2

Piece = tuple[int, int, int]
"""Whose, which, of which head; a group's are negative."""


class Decode(NamedTuple):
    group: int
    common_tokens: int
    own_tokens: int


class Shape(NamedTuple):
    """Decodes in groups, each of which has a prefix of its own in common, on a GPU that holds some KV heads."""

    num_heads: int
    num_groups: int
    num_readers: int
    common_tokens: int
    own_tokens: int


def main() -> None:
    print("| KV heads | groups of | decodes | in common | own, up to | spared in time | in step | share |")
    print("|---|---|---|---|---|---|---|---|")
    played = [(shape, *spared_of(shape)) for shape in shapes()]
    for shape, spared, in_step in played:
        lengths = f"{shape.common_tokens:,} | {shape.own_tokens:,}"
        print(
            f"| {shape.num_heads} | {shape.num_readers} | {shape.num_groups * shape.num_readers} | {lengths} | {spared:.0%} | {in_step:.0%} | {spared / in_step:.2f} |"
        )
    low, middle, high = quarters(played)
    print(f"\nshare: {middle:.2f} in the median, half of them {low:.2f} to {high:.2f}; IN_STEP is {low:.2f}")


def quarters(played: Iterable[tuple[Shape, float, float]]) -> list[float]:
    """Of what is spared to what would be in step: what three of four shapes reach, two and one."""
    return quantiles([spared / in_step for _, spared, in_step in played], n=4)


def shapes() -> Iterator[Shape]:
    """From two decodes with one prompt to two hundred in groups of sixteen, prompts of thousands of tokens and answers of up to thousands."""
    for heads, readers, decodes, common, own in product(
        (1, 2, 4, 8), (2, 6, 16), (16, 64, 192), (1500, 6000), (300, 1000, 3000)
    ):
        if decodes >= readers:
            yield Shape(heads, decodes // readers, readers, common, own)


def spared_of(shape: Shape) -> tuple[float, float]:
    """The shares of an attention kernel's time that are spared: as played, and if all that are under way together kept step."""
    rng = random.Random(0)  # noqa: S311 - no secret
    decodes = [
        Decode(group, shape.common_tokens, rng.randint(shape.own_tokens // 8, shape.own_tokens))
        for group in range(shape.num_groups)
        for _ in range(shape.num_readers)
    ]
    rng.shuffle(decodes)
    alone = tuple(decode._replace(group=number) for number, decode in enumerate(decodes))
    spared = 1 - kernel_s(tuple(decodes), shape.num_heads) / kernel_s(alone, shape.num_heads)
    num_tokens = sum(decode.common_tokens + decode.own_tokens for decode in decodes)
    num_common = shape.num_groups * shape.common_tokens
    in_step = CommonReads(GPU.num_sms / shape.num_heads, 1 - 1 / FASTER_FROM_L2, in_step=1.0)
    return spared, in_step.num_spared(len(decodes), num_common * shape.num_readers, num_common) / num_tokens


@cache  # groups of any size are the same decodes alone
def kernel_s(decodes: tuple[Decode, ...], num_heads: int) -> float:
    """Seconds until all multiprocessors are done; memory and the L2 serve pieces one after the other."""
    # flash decoding, where there are fewer decodes than multiprocessors
    num_splits = max(1, GPU.num_sms // (len(decodes) * num_heads))
    tiles = iter(
        [
            part
            for number, decode in enumerate(decodes)
            for head in range(num_heads)
            for part in parts(list(pieces(number, decode, head)), num_splits)
        ]
    )
    in_l2: OrderedDict[Piece, float] = OrderedDict()  # when each has come, the latest used last
    memory_s = l2_s = end_s = 0.0
    busy = [(0.0, number, next(tiles, iter(()))) for number in range(GPU.num_sms)]
    while busy:
        now_s, number, reads = busy[0]
        piece = next(reads, None)
        if piece is None:
            end_s = max(end_s, now_s)
            if following := next(tiles, None):
                heapq.heapreplace(busy, (now_s, number, following))
            else:
                heapq.heappop(busy)
            continue
        l2_s = max(l2_s, now_s) + FROM_L2_S
        if piece in in_l2:
            in_l2.move_to_end(piece)
        else:
            memory_s = max(memory_s, now_s) + PIECE_S
            in_l2[piece] = memory_s
            if len(in_l2) > MOST_PIECES:
                in_l2.popitem(last=False)
        heapq.heapreplace(busy, (max(in_l2[piece], l2_s, now_s + LEAST_PIECE_S), number, reads))
    return end_s


def parts(whole: list[Piece], count: int) -> Iterator[Iterator[Piece]]:
    """As many stretches of equal length."""
    size = -(-len(whole) // count)
    for first in range(0, len(whole), size):
        yield iter(whole[first : first + size])


def pieces(number: int, decode: Decode, head: int) -> Iterator[Piece]:
    """What a multiprocessor reads of a decode: what is its own, then what its group has in common, each from the end."""
    for place in reversed(range(decode.own_tokens // PIECE_TOKENS)):
        yield number, place, head
    for place in reversed(range(decode.common_tokens // PIECE_TOKENS)):
        yield -1 - decode.group, place, head


if __name__ == "__main__":
    main()
