"""Which LoRA adapter each request of a trace asks for, and what that does to the prompts that it shares."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sim.workload.columns import Ints
from sim.workload.trace import Segment, Trace

BASE_MODEL = ""


def adapter_numbers(lora_name: Sequence[str]) -> Ints:
    """The adapter of each request as a number, from 1 on as they come first; 0 is the base model."""
    numbers = {BASE_MODEL: 0}
    return np.array([numbers.setdefault(name, len(numbers)) for name in lora_name], dtype=np.int64)


def num_adapters(trace: Trace) -> int:
    """How many different adapters a trace asks for."""
    return len(set(trace.lora_name or ()) - {BASE_MODEL})


def told_apart(trace: Trace) -> Trace:
    """The same prompts, as if equal tokens under different adapters were different ones: their KV is, and vLLM hashes so.

    Prompts are equal as far as their beginnings are, so that it is enough to tell these apart; a session has one adapter.
    """
    if trace.lora_name is None or trace.segments is None:
        return trace
    firsts: dict[tuple[int, int], int] = {}
    adapters = adapter_numbers(trace.lora_name).tolist()
    segments = [_begun_apart(path, adapter, firsts) for adapter, path in zip(adapters, trace.segments, strict=True)]
    return replace(trace, segments=segments)


def _begun_apart(path: tuple[Segment, ...], adapter: int, firsts: dict[tuple[int, int], int]) -> tuple[Segment, ...]:
    if not path:
        return path
    (content, num_tokens), *rest = path
    return ((firsts.setdefault((adapter, content), len(firsts)), num_tokens), *rest)
