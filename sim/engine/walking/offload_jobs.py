"""What the CPU tier's worker does: loads and stores, a queue for either.

Mirrors vLLM's v1/kv_offload/cpu/gpu_worker.py (0.33), which has a stream for each direction.
"""

from math import inf

from sim.engine.walking.chunks import NOTHING
from sim.engine.walking.connector import Transfer
from sim.engine.walking.progress import Progress


class Job(Transfer):
    """A load or a store of the chunks with these keys.

    A store reads `blocks` of its request, of which those from `end_block` on are known to be taken; of several groups it knows the copies: those that
    their request may give back while it runs, and all.
    """

    def __init__(self, progress: Progress, kind: str, num_tokens: int, num_blocks: int, keys: list[int]) -> None:
        super().__init__(progress, kind, num_tokens, num_blocks)
        self.keys = keys
        self.blocks = NOTHING
        self.end_block = 0
        self.passing_copies = NOTHING
        self.copies = NOTHING
        self.is_waited_for = False


class Worker:
    """Does jobs of one kind one after the other."""

    def __init__(self, base_s: float, block_s: float) -> None:
        self._base_s = base_s
        self._block_s = block_s
        self._free_s = -inf

    def begin(self, jobs: list[Job], start_s: float) -> None:
        """Line up jobs at that time."""
        for job in jobs:
            job.start_s = max(start_s, self._free_s)
            job.end_s = self._free_s = job.start_s + self._base_s + self._block_s * job.num_blocks
