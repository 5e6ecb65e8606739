"""A trace without the names of anyone or anything in it."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from sim.errors import ConfigError
from sim.specs.slo import SloClass
from sim.workload.adapters import BASE_MODEL, told_apart
from sim.workload.columns import MAX_TOKENS, Ints
from sim.workload.conversations import session_numbers
from sim.workload.names import PackedNames, RowNames
from sim.workload.prefix_tree import walks
from sim.workload.trace import Segment, Trace
from sim.workload.writers import block_sizes


def anonymise(trace: Trace, *, seed: int = 0, round_tokens: int = 1) -> Trace:
    """The same load under other names: requests by row, sessions, adapters, classes and content ids by numbers in an order that is drawn.

    Equal content ids are where prompts have equal beginnings under one adapter, and nowhere else. `round_tokens` rounds lengths to
    multiples of it, a prompt's within its last block, so that it shares what it did. Times, priorities and answers stay.
    """
    if not 1 <= round_tokens <= MAX_TOKENS:
        raise ConfigError(
            f"`round_tokens` must be from 1 to {MAX_TOKENS:,}, got {round_tokens}; 1 leaves lengths as they are."
        )
    rng = np.random.default_rng(seed)
    prompts = _rounded(trace.prompt_tokens, round_tokens)
    segments = None
    if trace.segments is not None:
        ends = np.array([sum(tokens for _, tokens in path[:-1]) for path in trace.segments])
        prompts = np.clip(prompts, ends + 1, ends + np.array(block_sizes(trace.segments)))
        segments = _renumbered(told_apart(trace).segments or (), (prompts - ends).tolist(), rng)
    return replace(
        trace,
        request_id=RowNames(range(len(trace))),
        prompt_tokens=prompts,
        output_tokens=_rounded(trace.output_tokens, round_tokens),
        lora_name=None if trace.lora_name is None else _renamed("adapter", trace.lora_name, rng),
        session_id=None if trace.session_id is None else _renamed("session", trace.session_id, rng),
        slo_classes=_unnamed(trace.slo_classes, rng),
        segments=segments,
        source="",
        notes=(),
    )


def _rounded(tokens: Ints, multiple: int) -> Ints:
    """To the nearest, upwards from half, but never to 0 what is more."""
    if multiple == 1:
        return tokens
    nearest: Ints = np.maximum((tokens + multiple // 2) // multiple, tokens > 0) * multiple
    return nearest.clip(max=MAX_TOKENS)


def _renamed(kind: str, names: Sequence[str], rng: np.random.Generator) -> PackedNames:
    numbers = session_numbers(names)
    order = rng.permutation(int(numbers.max()) + 1).tolist()
    renamed = {BASE_MODEL: BASE_MODEL} if kind == "adapter" else {}
    pairs = zip(names, numbers.tolist(), strict=True)
    return PackedNames.of(renamed.get(name, f"{kind}-{order[number]}") for name, number in pairs)


def _unnamed(classes: tuple[SloClass, ...], rng: np.random.Generator) -> tuple[SloClass, ...]:
    return tuple(
        SloClass(f"class-{number}", one.slos)
        for number, one in zip(rng.permutation(len(classes)).tolist(), classes, strict=True)
    )


def _renumbered(
    paths: Sequence[tuple[Segment, ...]], last_tokens: list[int], rng: np.random.Generator
) -> tuple[tuple[Segment, ...], ...]:
    """Each stem of the prompts' tree is a content of its own."""
    stems = walks(paths).stem
    contents = iter(rng.permutation(int(stems.max()) + 1)[stems].tolist())
    renumbered = []
    for path, last in zip(paths, last_tokens, strict=True):
        tokens = [*(tokens for _, tokens in path[:-1]), last]
        renumbered.append(tuple(zip(islice(contents, len(path)), tokens, strict=True)))
    return tuple(renumbered)
