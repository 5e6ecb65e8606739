"""The memory plan as text: where each GPU's memory goes, what vLLM will log, which steps replay a graph, what to change."""

from collections.abc import Iterable, Iterator

from sim.memory.ledger import Line
from sim.memory.plan import MemoryPlan
from sim.memory.remedies import Remedy
from sim.report.tables import aligned
from sim.units import GIB

TAKEN_LATER = "CUDA graphs taken"  # after the cache is allocated, so it is no part of the sum
BAR_WIDTH = 64
FILLS = {"weights": "█", "activations": "▓", "non-torch": "▒", "CUDA graphs": "░", "KV cache": "■"}
UNUSED = "·"  # beyond gpu_memory_utilization, and what is less than a block


def memory_table(plan: MemoryPlan, *, explain: bool = False) -> str:
    """GiB per GPU by heading with a bar, or line by line with each formula and its source when `explain`."""
    ledger = _explained(plan) if explain else _headings(plan)
    return "\n\n".join((ledger, _bar(plan), "\n".join(log_lines(plan))))


def remedy_lines(remedies: Iterable[Remedy]) -> Iterator[str]:
    """Changes that each make the model fit, smallest first, with what the plan then allows."""
    lines = [
        f"  {remedy.argument}={remedy.value}: fits, {remedy.plan.kv_cache_tokens:,} tokens of KV cache, "
        f"{remedy.plan.max_concurrency:.2f}x at {remedy.plan.max_model_len:,} tokens"
        for remedy in remedies
    ]
    yield "Any one of these makes it fit:" if lines else "No single argument makes it fit; take more or larger GPUs."
    yield from lines


def _headings(plan: MemoryPlan) -> str:
    totals = [(name, num_bytes / GIB) for name, num_bytes in _totals(plan).items()]
    of_stage = f", stage {plan.stage.rank + 1} of {plan.stage.size}" if plan.stage.size > 1 else ""
    return aligned((f"per GPU{of_stage}", "GiB"), [("total", plan.total_bytes / GIB), *totals])


def _totals(plan: MemoryPlan) -> dict[str, int]:
    """Bytes by heading, of what is counted before serving."""
    headings = dict.fromkeys(line.group for line in plan.ledger if line.group != TAKEN_LATER)
    return {name: sum(line.num_bytes for line in plan.ledger if line.group == name) for name in headings}


def _explained(plan: MemoryPlan) -> str:
    return aligned(("per GPU", "", "GiB", "formula", "source"), map(_row, plan.ledger))


def _row(line: Line) -> tuple[str, str, float, str, str]:
    return line.group, line.name, line.num_bytes / GIB, line.formula, line.source


def _bar(plan: MemoryPlan) -> str:
    """The GPU's memory from end to end; what does not fit is cut off."""
    totals = {name: num_bytes for name, num_bytes in _totals(plan).items() if name in FILLS and num_bytes}
    ends, used = [], 0
    for num_bytes in totals.values():
        used += num_bytes
        ends.append(round(BAR_WIDTH * used / plan.total_bytes))
    widths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    cells = "".join(FILLS[name] * width for name, width in zip(totals, widths, strict=True))
    legend = "  ".join(f"{FILLS[name]} {name}" for name in totals)
    return f"{cells[:BAR_WIDTH].ljust(BAR_WIDTH, UNUSED)}\n{legend}  {UNUSED} not used"


def log_lines(plan: MemoryPlan) -> Iterator[str]:
    """In vLLM's words, in the order in which it logs them."""
    if plan.reason is not None:
        yield f"Does not fit: {plan.reason}"
        return
    yield "vLLM will log:"
    yield f"Model loading took {plan.weights_bytes / GIB:.2f} GiB memory"
    if plan.cuda_graph_estimate_bytes:
        yield f"Estimated CUDA graph memory: {plan.cuda_graph_estimate_bytes / GIB:.2f} GiB total"
    yield f"Available KV cache memory: {plan.available_kv_cache_bytes / GIB:.2f} GiB"
    yield f"GPU KV cache size: {plan.kv_cache_tokens:,} tokens"
    yield f"Maximum concurrency for {plan.max_model_len:,} tokens per request: {plan.max_concurrency:.2f}x"
    if plan.cuda_graph_bytes:
        yield f"Graph capturing finished, took {plan.cuda_graph_bytes / GIB:.2f} GiB"
    yield f"({plan.num_gpu_blocks:,} blocks of {plan.block_size} tokens)"
