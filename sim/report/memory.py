"""The memory plan as a table: where each GPU's memory goes, and the lines vLLM will log."""

from collections.abc import Iterator

from sim.memory.ledger import Line
from sim.memory.plan import MemoryPlan
from sim.report.tables import aligned
from sim.units import GIB

TAKEN_LATER = "CUDA graphs taken"  # after the cache is allocated, so it is no part of the sum


def memory_table(plan: MemoryPlan, *, explain: bool = False) -> str:
    """GiB per GPU by heading, or line by line with each formula and its source when `explain`."""
    lines = _explained(plan) if explain else _headings(plan)
    return "\n\n".join((lines, "\n".join(_log_lines(plan))))


def _headings(plan: MemoryPlan) -> str:
    headings = dict.fromkeys(line.group for line in plan.ledger if line.group != TAKEN_LATER)
    totals = [(name, sum(line.num_bytes for line in plan.ledger if line.group == name) / GIB) for name in headings]
    return aligned(("per GPU", "GiB"), [("total", plan.total_bytes / GIB), *totals])


def _explained(plan: MemoryPlan) -> str:
    return aligned(("per GPU", "", "GiB", "formula", "source"), map(_row, plan.ledger))


def _row(line: Line) -> tuple[str, str, float, str, str]:
    return line.group, line.name, line.num_bytes / GIB, line.formula, line.source


def _log_lines(plan: MemoryPlan) -> Iterator[str]:
    """In vLLM's words, where it has them."""
    if plan.reason is not None:
        yield f"Does not fit: {plan.reason}"
        return
    yield f"Available KV cache memory: {plan.available_kv_cache_bytes / GIB:.2f} GiB"
    yield f"GPU KV cache size: {plan.kv_cache_tokens:,} tokens ({plan.num_gpu_blocks:,} blocks of {plan.block_size})"
    if plan.cuda_graph_bytes:
        yield f"Graph capturing takes {plan.cuda_graph_bytes / GIB:.2f} GiB"
    yield f"Maximum concurrency for {plan.max_model_len:,} tokens per request: {plan.max_concurrency:.2f}x"
