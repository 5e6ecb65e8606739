"""Where each adapter is: of the ages of all uses, the oldest makes room."""

from tests.reference.modes import Loras
from tests.reference.scheduler import Batch


class Adapters:
    """What the worker does before a batch: all of its adapters are in slots then, and slots hold what host memory holds."""

    def __init__(self, loras: Loras) -> None:
        self._loras = loras
        self._clock = 0
        self._host = {lora: lora - loras.max_cpu_loras for lora in range(1, loras.max_cpu_loras + 1)}
        self._slots: dict[int, int] = {}

    def wait_s(self, batch: Batch) -> float:
        """How long a batch waits for its own."""
        needed = []
        for row in batch.rows:
            if row.request.lora and row.request.lora not in needed:
                needed.append(row.request.lora)
        there = [lora for lora in needed if lora in self._slots]
        for lora in there:
            self._use(lora)
        wait_s = 0.0
        for lora in needed:
            if lora not in there:
                wait_s += self._bring(lora)
        return wait_s

    def dummy_s(self) -> float:
        """How long a dummy batch waits for its own, numbered from 1 on; nothing is left behind it."""
        some_lack = any(lora not in self._host for lora in range(1, self._loras.max_loras + 1))
        self._host, self._slots = {}, {}
        return self._loras.dummy_s if some_lack else 0.0

    def _use(self, lora: int) -> None:
        self._clock += 1
        self._host[lora] = self._slots[lora] = self._clock

    def _bring(self, lora: int) -> float:
        wait_s = self._loras.copy_s
        if lora not in self._host:
            wait_s += self._loras.read_s
            while len(self._host) >= self._loras.max_cpu_loras:
                oldest = min(self._host, key=lambda other: self._host[other])
                del self._host[oldest]
                self._slots.pop(oldest, None)
        while len(self._slots) >= self._loras.max_loras:
            del self._slots[min(self._slots, key=lambda other: self._slots[other])]
        self._use(lora)
        return wait_s
