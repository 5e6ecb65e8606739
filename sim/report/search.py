"""The answer of a search as text: the winner, then the reasons, then the confidence."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sim.report.fleet_yaml import fleet_yaml
from sim.report.intervals import confidence_lines
from sim.report.parts import pool_rows
from sim.report.run_title import arguments_text, capacity_servers
from sim.report.tables import Table
from sim.units import GIB

Row = Mapping[str, Any]
GIVEN = "given, not searched"
"""Why an argument of the user's own is no knob."""


def optimization_text(summary: Row) -> str:
    """Blocks of text with empty lines between."""
    return "\n\n".join(map(str, optimization_blocks(summary)))


def optimization_blocks(summary: Row) -> Iterator[str | Table]:
    """The same as texts and tables, one after the other."""
    return (block for block in _blocks(summary) if block)


def _blocks(summary: Row) -> Iterator[str | Table]:
    best = summary["best"]
    yield rejected(summary)
    yield verdict(summary)
    yield winners(summary)
    if "fleet" in best:
        yield "\n".join(pool_rows(best["metrics"]["pools"]))
        yield "\n".join(f"{pool['pool']} limited by: {pool['limits']['text']}" for pool in best["metrics"]["pools"])
        yield "\n".join(f"{name}: {_memory(plan)}" for name, plan in best["memory"].items())
        yield f"best_fleet.yaml:\n{fleet_yaml(best['fleet'])}".rstrip()
    else:
        yield _memory(best["memory"])
    if summary["pareto"] and len(summary["objective"]) > 1:
        yield pareto_table(summary)
    yield "\n".join(advice(summary))
    yield f"serve:\n  {best['serve_command']}\n{_verify(best, summary['slo'])}"


def _verify(row: Row, slos: Iterable[str]) -> str:
    """The command that checks the forecast, and the forecast for exactly the load that it sends."""
    verify = row["verify"]
    notes = "".join(f"; {note}" for note in verify["notes"])
    return f"verify ({verify['num_prompts']:,} prompts from the file that --out writes{notes}):\n  {row['bench_command']}\n  forecast for exactly this load: {_forecast(verify['metrics'], slos)}"


def _forecast(metrics: Row, slos: Iterable[str]) -> str:
    named = {f"{name.partition('_')[2]}_{name.partition('_')[0]}_ms": name for name in slos}
    named = {"p99_ttft_ms": "P99 TTFT", "mean_tpot_ms": "mean TPOT", "p99_e2el_ms": "P99 E2EL"} | named
    latencies = [f"{name} {figure(metrics[key])} ms" for key, name in named.items()]
    return ", ".join([*latencies, f"{figure(metrics['output_throughput'])} output tok/s"])


def rejected(summary: Row) -> str:
    """The requests that no configuration serves; they come first."""
    return summary["unservable"]["text"] if summary["unservable"] else ""


def verdict(summary: Row) -> str:
    """The best, its score and what is tied with it; where no candidate keeps all limits, how far the nearest is from that."""
    best, unit = summary["best"], summary["score_unit"]
    given, pays = (
        _baseline(summary["baseline"]),
        "what you pay" if summary["objective"][0] == "cost" else "what to expect",
    )
    unseen = f"{figure(best['held_out_score'])} on the part alone that the search did not see"
    lines = [
        f"{'best' if summary['feasible'] else 'nearest'} for {', '.join(summary['objective'])}: {describe(best)}",
        f"score {figure(best['score'])} {unit} on the whole trace: {pays} ({_as_given(summary)} {given}; {unseen})",
    ]
    if not summary["feasible"]:
        lines += _shortfall(summary)
    if best["tied_with"]:
        lines.append(f"tied with {len(best['tied_with'])} more within noise; this one is the simplest")
    lines += [f"{name} {_left(summary, reason)}: {reason}" for name, reason in summary["fixed"].items()]
    lines.append(_confidence(summary))
    return "\n".join(lines)  # fmt: skip


def _shortfall(summary: Row) -> Iterator[str]:
    if summary["unservable"] and summary["unservable"]["broken"]:
        yield "NO candidate keeps all limits, for the requests that are rejected; this is the nearest."
        return
    yield "NO candidate keeps all limits; this is the nearest. It would, with"
    for one in summary["relax"]:
        yield f"  {one['slo']} at {one['to_ms']:,.0f} ms instead of {one['limit_ms']:g} ms: {describe(one)}"
    if not summary["relax"]:
        yield "  several limits raised at once, or fewer requests a second"


def _confidence(summary: Row) -> str:
    return "\n".join(confidence_lines(summary["confidence"]))


def _left(summary: Row, reason: str) -> str:
    return "stays as it is" if "fleet" in summary or reason == GIVEN else "was left to vLLM"


def _as_given(summary: Row) -> str:
    return "the fleet as given" if "fleet" in summary else "vLLM as given"


def _baseline(baseline: Row) -> str:
    return "cannot serve it" if baseline["reason"] else figure(baseline["score"])


def winners(summary: Row) -> Table:
    """A row a finalist."""
    rows = [_winner_row(number, one, summary) for number, one in enumerate(summary["finalists"])]
    return Table(tuple(rows[0]), [tuple(row.values()) for row in rows])


def _winner_row(number: int, one: Row, summary: Row) -> dict[str, object]:
    """A finalist by column; what was rejected has one where anything was, and limits are then shown over all requests.

    What limits each pool of a fleet has no room in a column.
    """
    metrics, rejected = one["metrics"], summary["unservable"]
    mark = "best" if number == 0 else "tied" if one["tied"] else f"#{number + 1}"
    head = {"": mark, "configuration": describe(one), "GPUs": one["num_gpus"], "tok/s": metrics["output_throughput"]}
    latencies = {"P99 TTFT ms": metrics["p99_ttft_ms"], "P99 E2EL ms": metrics["p99_e2el_ms"]}
    limited = [name for name in summary["slo"] if rejected or name not in {"ttft_p99", "e2el_p99"}]
    latencies |= {name: _late(metrics[f"slo_{name}_ms"], metrics) for name in limited}
    counts = {"rejected": metrics["rejected"]} if rejected else {}
    price = {"$/M tok": metrics["usd_per_million_output_tokens"]}
    by = {} if "knobs" in one else {"limited by": one["limits"] and one["limits"]["text"]}
    return head | latencies | counts | price | by


def _late(value: float | None, metrics: Row) -> float | None:
    """A percentile over all requests: infinite if too many were not served."""
    return math.inf if value is None and metrics["completed"] < metrics["arrived"] else value


def _memory(plan: Row) -> str:
    parts = {"weights": "weights", "activation": "activations", "non_torch": "other", "cuda_graph": "CUDA graphs"}
    shares = [f"{label} {plan[f'{name}_bytes'] / GIB:.1f}" for name, label in parts.items()]
    kv = f"KV {plan['kv_cache_bytes'] / GIB:.1f} GiB ({plan['kv_cache_tokens']:,} tokens)"
    return f"memory per GPU: {', '.join(shares)}, {kv}"


def pareto_table(summary: Row) -> Table:
    """A row for each that no other dominates."""
    header = ("Pareto set", "tok/s", "P99 E2EL ms", "$/M tok")
    keys = ("output_throughput", "p99_e2el_ms", "usd_per_million_output_tokens")
    return Table(header, [(describe(one), *(one["metrics"][key] for key in keys)) for one in summary["pareto"]])


def advice(summary: Row) -> Iterator[str]:
    """What to do, a line each, and how many candidates cannot serve."""
    for sentence in summary["recommendations"]:
        yield f"- {sentence}"
    infeasible = summary["infeasible"]
    if infeasible:
        yield f"- {len(infeasible):,} of {summary['evaluated']:,} candidates cannot serve the trace; one for this reason: {infeasible[0]['reason']}"


def describe(row: Row) -> str:
    """A configuration in a line: `max_num_seqs=64`, or a phrase for one without flags."""
    if "knobs" in row:
        return arguments_text(row["knobs"]) or "the fleet as given"
    words = [arguments_text(row["engine"]), f"replicas={row['replicas']}" if row["replicas"] > 1 else ""]
    words += [f"{name}={row[name]}" for name in ("router", "kv_store", "kv_pull") if row.get(name) is not None]
    return " ".join(filter(None, words)) or "vLLM's defaults"


def figure(value: float | None) -> str:
    """Four significant digits; `-` for None."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def capacity_text(summary: Row) -> str:
    """The highest rate, what it means, the curve and, where a rate was asked for, how many GPUs it takes."""
    return "\n\n".join(map(str, capacity_blocks(summary)))


def capacity_blocks(summary: Row) -> Iterator[str | Table]:
    """The same as texts and tables, one after the other."""
    blocks = (rejected(summary), _most(summary), curve_table(summary), sizing(summary), _confidence(summary))
    return (block for block in blocks if block)


def _most(summary: Row) -> str:
    if summary["max_request_rate"] is None:
        return highest_rate(summary)
    return f"{highest_rate(summary)}\nserve:\n  {summary['serve_command']}\n{_verify(summary, summary['slo'])}"


def highest_rate(summary: Row) -> str:
    """What the highest rate means, or why there is none."""
    rate, limits = summary["max_request_rate"], ", ".join(f"{name} <= {ms:g} ms" for name, ms in summary["slo"].items())
    gpus = capacity_servers(summary)
    if rate is None:
        return f"{gpus} keeps {limits} at no rate: {_why_no_rate(summary)}"
    metrics = summary["metrics"]
    lines = [
        f"{gpus} takes {figure(rate)} requests/s within {limits}; first to break: {summary['limited_by']}",
        f"that is {figure(summary['concurrent_requests'])} requests at a time, {figure(metrics['output_throughput'])} output tok/s",
    ]
    if summary["usd_per_hour"] is not None:
        cost = metrics["usd_per_million_output_tokens"]
        lines.append(f"for ${figure(summary['usd_per_hour'])} an hour, ${figure(cost)} per million output tokens")
    lines += _while_it_changes(metrics)
    if summary["knee_request_rate"] is not None:
        lines.append(f"latency turns up at {figure(summary['knee_request_rate'])} requests/s (the knee)")
    return "\n".join(lines)


def _while_it_changes(metrics: Row) -> Iterator[str]:
    """Of a fleet whose replicas come and go."""
    if "mean_replicas" in metrics:
        cost = "" if metrics["cost_usd"] is None else f", ${figure(metrics['cost_usd'])}"
        yield (
            f"with {figure(metrics['mean_replicas'])} replicas on average and {metrics['max_replicas']} at most: "
            f"{figure(metrics['gpu_hours'])} GPU hours{cost} for {figure(metrics['duration'])} s"
        )


def _why_no_rate(summary: Row) -> str:
    if summary["unservable"] and summary["unservable"]["broken"]:
        return "requests are rejected at any. The curve has those that are not."
    return "even requests that are alone are too slow. See the curve for what to relax."


def curve_table(summary: Row) -> Table:
    """A row a rate."""
    limited = (f"{name} ms" for name in summary["slo"])
    header = ("requests/s", "tok/s", *limited, "rejected", "GPU busy", "within limits")
    rows = [
        (
            row["request_rate"],
            row["output_throughput"],
            *(_late(row[name], row) for name in summary["slo"]),
            row["rejected"],
            row["gpu_busy_fraction"],
            "yes" if row["keeps_limits"] else "no",
        )
        for row in summary["curve"]
    ]
    return Table(header, rows)


def sizing(summary: Row) -> str:
    """How many GPUs the rate takes that was asked for; nothing where none was."""
    sizing = summary["sizing"]
    if sizing is None:
        return ""
    cost = "" if sizing["usd_per_hour"] is None else f", ${figure(sizing['usd_per_hour'])} an hour"
    head = f"{figure(sizing['request_rate'])} requests/s take {sizing['replicas']} replicas{_of_pool(sizing)} {sizing['num_gpus']} GPUs{cost}"
    return "\n".join([head, *(f"- {sentence}" for sentence in sizing["multiplication"])])


def _of_pool(sizing: Row) -> str:
    return f" of {sizing['pool']}, in all" if "pool" in sizing else " on"
