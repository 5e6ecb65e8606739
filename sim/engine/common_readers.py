"""Who reads blocks in common: decodes that are counted, and those that one pass has beside them."""

from typing import Final

from sim.engine.common_blocks import CommonBlocks
from sim.engine.config import SchedulerConfig
from sim.engine.keyed_blocks import KeyedBlocks
from sim.engine.prefix_cache import Held
from sim.engine.request import Request

COUNTED: Final = 0
NOBODY: Final[list[KeyedBlocks]] = []


class CommonReaders:
    """Of one KV group. Those that read beside the counted ones are looked at again only when somebody comes, goes or takes hold of more."""

    __slots__ = ("_beside", "_common", "_group", "_num_changes", "_number", "_others")

    def __init__(self, common: CommonBlocks, group: int) -> None:
        self._common = common
        self._group = group
        self._others = NOBODY
        self._beside: list[Held] = []
        self._num_changes = 0
        self._number = COUNTED

    def begin(self, request: Request) -> None:
        """It is counted from now on."""
        if request.keyed is not None:
            self._read(request.keyed.held[self._group], COUNTED)

    def end(self, request: Request) -> None:
        """It is counted no more."""
        if request.keyed is not None:
            request.keyed.held[self._group].end_reading()

    def _read(self, held: Held, number: int) -> None:
        if held.common is not self._common:
            held.end_reading()
            held.begin_reading(self._common)
        held.read_number = number

    def num_spared(self, num_decodes: int, others: list[KeyedBlocks]) -> int:
        """Tokens that so many decodes need not read from memory: those that are counted, and the holders of these and nobody else beside them."""
        if others != self._others or self._common.num_changes != self._num_changes:
            self._put_beside(others)
            self._others, self._num_changes = others, self._common.num_changes
        return self._common.num_spared(num_decodes)

    def _put_beside(self, others: list[KeyedBlocks]) -> None:
        self._number += 1
        before, self._beside = self._beside, [keyed.held[self._group] for keyed in others]
        for held in self._beside:
            self._read(held, self._number)
        for held in before:
            if held.common is self._common and COUNTED < held.read_number < self._number:
                held.end_reading()


def common_readers(config: SchedulerConfig) -> CommonReaders | None:
    """Of the first KV group of full attention, which is where prompts have most in common; None where requests share no blocks."""
    if config.common_reads is None or not config.engine.enable_prefix_caching:
        return None
    for number, group in enumerate(config.kv_groups):
        if group.window is None:
            return CommonReaders(CommonBlocks(config.common_reads, config.block_size), number)
    return None
