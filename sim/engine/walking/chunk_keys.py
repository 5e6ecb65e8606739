"""What the chunks of a request are known by, wherever they are kept outside of the GPU."""

from sim.engine.walking.progress import Progress

MOST_CHUNKS = 2**32
"""Of one request."""


def chunk_keys(progress: Progress, keys: list[int], num_chunks: int, chunk_blocks: int) -> list[int]:
    """`keys`, which grow to at least so many: by the trace's key of a chunk's last block, or numbers of the request's own."""
    keyed, row = progress.request.keyed, progress.request.index
    for chunk in range(len(keys), num_chunks):
        last_block = (chunk + 1) * chunk_blocks - 1
        if keyed is not None and last_block < progress.num_trace_blocks:
            keys.append(keyed.key(last_block))
        else:
            keys.append(-1 - row * MOST_CHUNKS - chunk)
    return keys
