"""Which blocks of a trace's requests hold equal contents, as keys: equal keys, equal tokens up to and in that block.

Only contents that a second request can ask for get a key; a trace that shares nothing costs nothing.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from sim.serving.prefix_cache import NO_COPIES, Keys
from sim.workload.trace import Segment, Trace

Path = Sequence[Segment]


def private_prompt_id(index: int) -> int:
    """Content id of the prompt of request number `index` where nothing is known of it."""
    return -2 * index - 1


def output_id(index: int) -> int:
    """Content id of what request number `index` generates."""
    return -2 * index - 2


def shared_block_keys(trace: Trace, block_size: int) -> tuple[list[Keys], int]:
    """For each request the keys of its leading blocks that others have too, and the number of keys in all."""
    if trace.segments is None:
        return [NO_COPIES] * len(trace), 0
    if all(_is_aligned(path, block_size) for path in trace.segments):
        return _keys_of_segments(trace.segments, block_size)
    outputs = trace.output_tokens.tolist()
    paths = [(*path, (output_id(index), outputs[index])) for index, path in enumerate(trace.segments)]
    return _keys_of_blocks(paths, block_size)


def _is_aligned(path: Path, block_size: int) -> bool:
    """Whether every block of the prompt lies in one segment, and none is another request's output."""
    return all(length % block_size == 0 for _, length in path[:-1]) and min(path)[0] >= 0


def _keys_of_segments(paths: Sequence[Path], block_size: int) -> tuple[list[Keys], int]:
    """A key range for each segment in its place: the tree of all prompts, by segment."""
    nodes: dict[tuple[int, int, int], int] = {}
    visits: list[int] = []
    sizes: list[int] = []
    trails = []
    for path in paths:
        place, trail = (-1, 0), []
        for content_id, length in path:
            node = nodes.setdefault((*place, content_id), len(visits))
            if node == len(visits):
                visits.append(0)
                sizes.append(0)
            visits[node] += 1
            sizes[node] = max(sizes[node], length // block_size)
            trail.append((node, length // block_size))
            place = (node, length)
        trails.append(trail)
    first_keys = np.concatenate(([0], np.cumsum(np.array(sizes, dtype=np.int64))))
    keys = [_trail_keys([step for step in trail if visits[step[0]] > 1], first_keys) for trail in trails]
    return keys, int(first_keys[-1])


def _trail_keys(trail: Sequence[tuple[int, int]], first_keys: Keys) -> Keys:
    if not trail:
        return NO_COPIES
    nodes, counts = np.array(trail, dtype=np.int64).T
    offsets = np.cumsum(counts) - counts
    return np.repeat(first_keys[nodes] - offsets, counts) + np.arange(int(counts.sum()))


def _keys_of_blocks(paths: Sequence[Path], block_size: int) -> tuple[list[Keys], int]:
    """A key for each block, chained over its prefix: for segments that begin and end within blocks."""
    interned: dict[tuple[object, ...], int] = {}
    chains = [_chain(path, block_size, interned) for path in paths]
    owners = Counter(key for chain in chains for key in chain)
    shared = [[key for key in chain if owners[key] > 1] for chain in chains]
    return [np.array(keys, dtype=np.int64) for keys in shared], len(interned)


def _chain(path: Path, block_size: int, interned: dict[tuple[object, ...], int]) -> list[int]:
    """Keys of a path's full blocks: each names its parent and the pieces `(content id, first token, tokens)` in it."""
    keys: list[int] = []
    pieces: list[tuple[int, int, int]] = []
    missing = block_size
    for content_id, length in path:
        offset = 0
        while offset < length:
            taken = min(missing, length - offset)
            pieces.append((content_id, offset, taken))
            offset, missing = offset + taken, missing - taken
            if not missing:
                chained = (keys[-1] if keys else -1, *pieces)
                keys.append(interned.setdefault(chained, len(interned)))
                pieces, missing = [], block_size
    return keys
