"""A start-up log's figures beside those of the plan, line by line."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sim.memory.plan import MemoryPlan
from sim.memory.startup_log import COUNTS, GIB_FIGURES, StartupLog
from sim.report.tables import aligned
from sim.units import GIB


class LogLine(NamedTuple):
    """One figure, memory in GiB; `predicted` is None where the plan has none."""

    name: str
    logged: float
    predicted: float | None

    @property
    def error_percent(self) -> float | None:
        """Signed; None where there is nothing to compare."""
        return 100 * (self.predicted / self.logged - 1) if self.predicted is not None and self.logged > 0 else None


def log_comparison(log: StartupLog, plan: MemoryPlan) -> tuple[LogLine, ...]:
    """The figures that the log states, in the order in which vLLM takes the memory."""
    predicted = _predicted(plan)
    names = (*GIB_FIGURES, *COUNTS)
    return tuple(LogLine(name, log.reported[name], predicted[name]) for name in names if name in log.reported)


def _predicted(plan: MemoryPlan) -> Mapping[str, float | None]:
    return {
        "total": plan.total_bytes / GIB,
        "weights": plan.weights_bytes / GIB,
        "activations": plan.activation_bytes / GIB,
        "non-torch": plan.non_torch_bytes / GIB,
        "CUDA graphs, estimate": plan.cuda_graph_estimate_bytes / GIB or None,
        "available for the KV cache": plan.available_kv_cache_bytes / GIB,
        "CUDA graphs taken": plan.cuda_graph_bytes / GIB,
        "KV cache tokens": float(plan.kv_cache_tokens),
        "KV blocks": float(plan.num_gpu_blocks),
        "maximum concurrency": plan.max_concurrency,
    }


def log_table(lines: tuple[LogLine, ...]) -> str:
    """Memory in GiB with two decimals, counts in full; the error as signed per cent."""
    return aligned(("", "logged", "predicted", "error"), map(_cells, lines))


def _cells(line: LogLine) -> tuple[str, str, str, str]:
    error = "-" if line.error_percent is None else f"{round(line.error_percent, 1) + 0.0:+.1f} %"  # no -0.0
    return line.name, _figure(line, line.logged), _figure(line, line.predicted), error


def _figure(line: LogLine, value: float | None) -> str:
    if value is None:
        return "-"
    if line.name in GIB_FIGURES:
        return f"{value:,.2f} GiB"
    return f"{value:,.2f}x" if line.name == "maximum concurrency" else f"{value:,.0f}"


def log_json(log: StartupLog, lines: tuple[LogLine, ...]) -> dict[str, object]:
    """What the log stated and how far the plan is from it."""
    return {
        "vllm_version": log.vllm_version,
        "model": log.model,
        "left_out": list(log.left_out),
        "lines": [{**line._asdict(), "error_percent": line.error_percent} for line in lines],
    }


def log_notes(log: StartupLog) -> Iterator[str]:
    """Arguments of the log that the plan leaves out."""
    for name in log.left_out:
        yield f"{name} of the log is not part of the plan."
    if log.vllm_version is None:
        yield "the log states no vLLM version, so the newest known is taken; give --vllm-version."
