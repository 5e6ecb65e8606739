"""What an engine has loaded from its host's memory or from a store, load by load."""

from array import array

import numpy as np

from sim.engine.records import OffloadRecords
from sim.engine.walking.progress import Progress


class Loads:
    """In all, and `num_stored_blocks` that have gone the other way."""

    def __init__(self) -> None:
        self._rows = array("q")
        self._tokens = array("q")
        self._num_first_tokens = 0
        self._num_blocks = 0
        self.num_stored_blocks = 0

    def add(self, progress: Progress, num_tokens: int, num_blocks: int) -> None:
        """A load begins."""
        self._num_blocks += num_blocks
        self._rows.append(progress.request.index)
        self._tokens.append(num_tokens)
        if progress.request.num_preemptions == 0:
            self._num_first_tokens += num_tokens

    def records(self, block_bytes: int) -> OffloadRecords:
        """A block has so many bytes on all GPUs."""
        tokens = np.frombuffer(self._tokens, dtype=np.int64)
        return OffloadRecords(
            loaded_rows=np.frombuffer(self._rows, dtype=np.int64),
            loaded_tokens=tokens,
            loaded_bytes=self._num_blocks * block_bytes,
            stored_bytes=self.num_stored_blocks * block_bytes,
            external_prefix_cache_hits=self._num_first_tokens,
        )
