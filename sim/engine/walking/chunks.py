"""What the CPU tier keeps: of each request, and in its cache."""

from collections.abc import Sequence


class Chunks:
    """Of one request: the keys of its chunks as far as they are known, how many leading ones have been dealt with, which the
    CPU was offered or has loaded from, and its transfers under way.
    """

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.num_stored = 0
        self.dealt_with: list[int] = []
        self.num_jobs = 0


class Chunk:
    """A chunk in the CPU's memory: ready once it is stored; it stays while a load uses it."""

    def __init__(self) -> None:
        self.is_ready = False
        self.num_users = 0


class CpuCache:
    """Chunks in order of last use, the least recent first."""

    def __init__(self, num_chunks: int) -> None:
        self._room = num_chunks
        self._chunks: dict[int, Chunk] = {}

    def __len__(self) -> int:
        return len(self._chunks)

    def holds(self, key: int) -> bool:
        """Whether a chunk is there, or on its way."""
        return key in self._chunks

    def is_ready(self, key: int) -> bool:
        """Whether a chunk that is there has come."""
        return self._chunks[key].is_ready

    def is_loading(self, key: int) -> bool:
        """Whether somebody loads a chunk that is there."""
        return self._chunks[key].num_users > 0

    def offer(self, keys: Sequence[int]) -> list[int] | None:
        """Make room for those that are not there, which are returned; None, with nothing done, where there is none to be made."""
        new = [key for key in keys if key not in self._chunks]
        evicted = self._idle(len(new) + len(self._chunks) - self._room, set(keys))
        if evicted is None:
            return None
        for key in evicted:
            del self._chunks[key]
        for key in new:
            self._chunks[key] = Chunk()
        return new

    def _idle(self, count: int, kept: set[int]) -> list[int] | None:
        """So many chunks that nobody uses, the least recent first; None where there are fewer."""
        found: list[int] = []
        if count <= 0:
            return found
        for key, chunk in self._chunks.items():
            if chunk.is_ready and not chunk.num_users and key not in kept:
                found.append(key)
                if len(found) == count:
                    return found
        return None

    def stored(self, keys: Sequence[int]) -> None:
        """They have come."""
        for key in keys:
            self._chunks[key].is_ready = True

    def use(self, keys: Sequence[int]) -> None:
        """A load begins to use them."""
        for key in keys:
            self._chunks[key].num_users += 1

    def leave(self, keys: Sequence[int]) -> None:
        """A load is over."""
        for key in keys:
            self._chunks[key].num_users -= 1

    def renew(self, keys: Sequence[int]) -> None:
        """They have been used: a prompt's head ends up as the most recent."""
        for key in reversed(keys):
            if key in self._chunks:
                self._chunks[key] = self._chunks.pop(key)
