"""Blocks that several decodes read: counted as decodes come and go, so that a pass need not look for them."""

from sim.steptime.common_reads import CommonReads


class CommonBlocks:
    """Copies of contents of one KV group by how many decodes hold them: those of two or more are `num_blocks`, and read `num_reads` times together.

    `num_changes` is how often a decode began or ceased to hold one.
    """

    __slots__ = (
        "_block_size",
        "_latest",
        "_latest_spared",
        "_of_gpu",
        "_readers",
        "num_blocks",
        "num_changes",
        "num_reads",
    )

    def __init__(self, of_gpu: CommonReads, block_size: int) -> None:
        self._of_gpu = of_gpu
        self._block_size = block_size
        self._readers: dict[object, int] = {}
        self._latest = (0, 0, 0)
        self._latest_spared = 0
        self.num_blocks = 0
        self.num_changes = 0
        self.num_reads = 0

    def add(self, copies: object, count: int) -> None:
        """One more decode holds so many copies, which it shares as a whole or not at all."""
        self.num_changes += 1
        num_readers = self._readers.get(copies, 0) + 1
        self._readers[copies] = num_readers
        if num_readers == 2:
            self.num_blocks += count
            self.num_reads += 2 * count
        elif num_readers > 2:
            self.num_reads += count

    def remove(self, copies: object, count: int) -> None:
        """One decode fewer."""
        self.num_changes += 1
        num_readers = self._readers[copies] - 1
        if num_readers:
            self._readers[copies] = num_readers
        else:
            del self._readers[copies]
        if num_readers == 1:
            self.num_blocks -= count
            self.num_reads -= 2 * count
        elif num_readers > 1:
            self.num_reads -= count

    def split(self, copies: object, rest: object) -> None:
        """Some of these copies are told apart from now on."""
        self._readers[rest] = self._readers[copies]

    def num_spared(self, num_decodes: int) -> int:
        """Tokens that so many decodes, who hold them, need not read from memory in a step."""
        if self.num_blocks == 0:
            return 0
        counts = num_decodes, self.num_reads, self.num_blocks
        if counts != self._latest:  # asked so often that it is a seventh of a run with prefixes otherwise
            size = self._block_size
            self._latest = counts
            self._latest_spared = self._of_gpu.num_spared(num_decodes, self.num_reads * size, self.num_blocks * size)
        return self._latest_spared
