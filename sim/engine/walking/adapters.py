"""LoRA adapters on their way to the GPU: which are in its slots, which in host memory, and how long a batch waits for its own.

Mirrors vLLM's LRUCacheWorkerLoRAManager (vllm/lora/worker_manager.py, 0.33), which loads before it runs the batch, and what a dummy batch
does to it (maybe_dummy_run_with_lora of vllm/v1/worker/lora_model_runner_mixin.py, which removes all adapters behind it). Deliberate
differences: host memory holds at first the adapters that it has room for, as `--lora-modules` has them loaded; and a batch's
adapters that are there already are not evicted for its others.
"""

from collections import OrderedDict
from collections.abc import Sequence

from sim.engine.records import LoraRecords
from sim.engine.walking.progress import Progress
from sim.specs.lora import LoraSlots


class AdapterCache:
    """Two lists, least recently used first; adapters are numbers from 1 on."""

    def __init__(self, slots: LoraSlots) -> None:
        self._slots = slots
        self._on_gpu: OrderedDict[int, None] = OrderedDict()
        self._on_host: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, slots.max_cpu_loras + 1))
        self._num_copies = 0
        self._num_reads = 0
        self._load_s = 0.0

    def has_all(self, batch: Sequence[Progress]) -> bool:
        """Whether all adapters of a batch's requests are in slots."""
        return all(progress.request.lora in self._on_gpu for progress in batch if progress.request.lora)

    def load_s(self, batch: Sequence[Progress]) -> float:
        """Have the adapters of a batch's requests in slots, in order of admission; how long that takes."""
        needed = dict.fromkeys(progress.request.lora for progress in batch if progress.request.lora)
        missing = [lora for lora in needed if lora not in self._on_gpu]
        for lora in needed:
            if lora in self._on_gpu:
                self._on_gpu.move_to_end(lora)
                self._on_host.move_to_end(lora)
        seconds = sum([self._bring(lora) for lora in missing])
        self._load_s += seconds
        return seconds

    def run_dummy(self) -> float:
        """A dummy batch has adapters of zeros, but where real ones have their names, and behind it all are dropped; how long making them takes."""
        slots = self._slots
        is_made = all(lora in self._on_host for lora in range(1, slots.max_loras + 1))
        self._on_gpu.clear()
        self._on_host.clear()
        return 0.0 if is_made else slots.dummy_s

    def _bring(self, lora: int) -> float:
        """Into a slot; what is in a slot is in host memory as well."""
        slots, seconds = self._slots, self._slots.copy_s
        if lora in self._on_host:
            self._on_host.move_to_end(lora)
        else:
            if len(self._on_host) == slots.max_cpu_loras:
                self._on_gpu.pop(self._on_host.popitem(last=False)[0], None)
            self._on_host[lora] = None
            self._num_reads += 1
            seconds += slots.read_s
        if len(self._on_gpu) == slots.max_loras:
            self._on_gpu.popitem(last=False)
        self._on_gpu[lora] = None
        self._num_copies += 1
        return seconds

    def records(self) -> LoraRecords:
        """What has been loaded so far."""
        return LoraRecords(self._num_copies, self._num_reads, self._load_s)
