"""The free list: runs of free blocks, linked as vLLM links single blocks (v1/core/kv_cache_utils.py, FreeKVCacheBlockQueue)."""

from collections.abc import Iterator


class FreeRun:
    """Blocks that stand together in the free list, if they stand there. This kind nobody can ask for by name.

    `ahead` and `behind` are its neighbours. Blocks that windows have passed (`is_passed`) have places from `place` on, by which
    it can be told whose they were.
    """

    def __init__(self, count: int, *, has_content: bool = True, is_passed: bool = False, place: int = 0) -> None:
        self.count = count
        self.has_content = has_content
        self.is_passed = is_passed
        self.place = place
        self.ahead: FreeRun | None = None
        self.behind: FreeRun | None = None

    def lose(self, count: int) -> None:
        """The first of them, so many, are taken for something else."""
        self.count -= count
        self.place += count


class FreeList:
    """Runs in the order in which their blocks will be taken."""

    def __init__(self) -> None:
        self.first: FreeRun | None = None
        self.last: FreeRun | None = None

    def __iter__(self) -> Iterator[FreeRun]:
        run = self.first
        while run is not None:
            behind = run.behind
            yield run
            run = behind

    def append(self, run: FreeRun) -> None:
        """Line up at the end."""
        run.ahead = self.last
        if self.last is None:
            self.first = run
        else:
            self.last.behind = run
        self.last = run

    def insert(self, run: FreeRun, behind: FreeRun) -> None:
        """Line up ahead of one that stands in the list."""
        run.ahead, run.behind = behind.ahead, behind
        if behind.ahead is None:
            self.first = run
        else:
            behind.ahead.behind = run
        behind.ahead = run

    def remove(self, run: FreeRun) -> None:
        """Leave the list."""
        if run.ahead is None:
            self.first = run.behind
        else:
            run.ahead.behind = run.behind
        if run.behind is None:
            self.last = run.ahead
        else:
            run.behind.ahead = run.ahead
        run.ahead = run.behind = None
