"""How much of a prompt a store has, from its beginning on, and what of it an engine loads and stores.

Of chunks of several blocks, as LMCache has them of layers with full attention alone, that is as many leading ones as are there. Where a chunk is a block it is what
vLLM's MooncakeStoreConnector finds (mooncake/store/coordinator.py and scheduler.py, 0.33), by which one token of a prompt is left to compute: with the procedure of the GPU's own cache each kind of layers shortens what the one before
had, and windows need the end of it; stored is what that cache would keep, but for where prompts part.
"""

from collections.abc import Callable, Sequence

from sim.engine.config import SchedulerConfig
from sim.engine.request import Request
from sim.engine.retention import Ranges, Retention

Keys = Sequence[Sequence[int]]
"""Of a request's chunks, by KV group."""


class StoreLookup:
    """Of an engine. Windows of one size are one kind, whose groups all have to have what is found. It `is_by_block` where a chunk is a block, as for vLLM's own connector."""

    def __init__(self, config: SchedulerConfig, chunk_tokens: int) -> None:
        self._chunk_tokens = chunk_tokens
        self._windows = [group.window for group in config.kv_groups]
        self._prefixes = [number for number, window in enumerate(self._windows) if window is None]
        kinds: dict[int, list[int]] = {}
        for number, window in enumerate(self._windows):
            if window is not None:
                kinds.setdefault(window, []).append(number)
        self._kinds = [(-(-(window - 1) // chunk_tokens), numbers) for window, numbers in kinds.items()]
        self.is_by_block = chunk_tokens == config.block_size
        self.has_windows = bool(kinds)
        assert self.is_by_block or len(self._windows) == 1, "of several groups a chunk is a block"
        interval = config.retention_interval
        self._retention = None if interval is None else Retention(config, interval, drops=False, knows_junctions=False)
        self._is_sparse = [group.is_kept_sparsely for group in config.kv_groups]
        self._keeps_states = [group.keeps_states for group in config.kv_groups]

    def most(self, num_tokens: int) -> int:
        """Chunks of so many tokens that are looked for; block by block one token is left to compute."""
        return (num_tokens - self.is_by_block) // self._chunk_tokens

    def num_found(self, has: Callable[[int], bool], keys: Keys, most: int) -> int:
        """As many chunks as an engine can go on behind."""
        end = most
        for number in self._prefixes:
            end = _prefix(has, keys[number], end)
        before = -1
        while end != before and self._kinds:
            before = end
            for needed, numbers in self._kinds:
                end = _last_window(has, [keys[number] for number in numbers], needed, end)
            if len(self._kinds) == 1 and self._prefixes:
                break  # vLLM asks one other kind beside full attention but once
        return end

    def first_needed(self, number: int, end_tokens: int) -> int:
        """Of a group whose request goes on behind so many tokens, the first chunk that it looks at."""
        window = self._windows[number]
        return 0 if window is None else max(0, end_tokens - window + 1) // self._chunk_tokens

    def stored(self, number: int, request: Request, first: int, end: int, num_prefilled: int) -> Ranges:
        """Of the chunks of a group from number `first` to before `end`, those that a store gets from a prefill of so many tokens; states go there one by one."""
        if first >= end or self._keeps_states[number]:
            return []
        if self._retention is None or not self._is_sparse[number] or self._windows[number] is None:
            return [(first, end)]
        return self._retention.ranges(number, request, first, end, num_prefilled)


def _prefix(has: Callable[[int], bool], keys: Sequence[int], most: int) -> int:
    for number in range(most):
        if not has(keys[number]):
            return number
    return most


def _last_window(has: Callable[[int], bool], keys: Keys, needed: int, most: int) -> int:
    """Behind which chunk, at most so many, all groups have so many in a row, or all from the first on."""
    run = 0
    for chunk in range(most - 1, -1, -1):
        if run == needed:
            return chunk + 1 + needed
        run = run + 1 if all(has(of_group[chunk]) for of_group in keys) else 0
    return run
