"""Parts that pages of several commands have: where memory goes, what was asked for, how sure the forecast is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sim.report.fleet_yaml import fleet_yaml
from sim.report.intervals import between
from sim.report.page.blocks import Block, Card, Code, Facts, Grid, Prose, Share, Stack
from sim.report.run_title import arguments_text
from sim.report.tables import Table
from sim.units import GIB

Summary = Mapping[str, Any]
HEADINGS = ("weights", "activations", "non-torch", "CUDA graphs", "KV cache")
FREE = "not used"
WIDE = 1_000_000  # characters


def title_lines(title: Callable[[Summary, int], str], summary: Summary) -> list[str]:
    """The lines of a title as they are: the browser breaks them."""
    return title(summary, WIDE).split("\n")


def card(label: str, value: float | None, unit: str = "", within: str = "") -> Card:
    """A headline figure; `-` where there was nothing to measure."""
    return Card(label, "-" if value is None else short(value), unit if value is not None else "", within)


def interval(confidence: Summary, key: str, scale: float = 1.0) -> str:
    """The 90 % interval of a figure; nothing where there is none, or where both ends are told alike."""
    found = confidence.get("intervals", {}).get(key)
    low, _, high = ("", "", "") if found is None else between(found, scale).partition(" to ")
    return f"{low} to {high}" if low != high else ""


def short(value: float) -> str:
    """Four digits at most behind thousands, all before."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.4g}"


def cost_cards(figures: Summary) -> Iterator[Card]:
    """What output tokens cost, where a price is known."""
    if figures["usd_per_million_output_tokens"] is not None:
        yield Card("Cost", f"${short(figures['usd_per_million_output_tokens'])}", "", "per million output tokens")


def memory_blocks(name: str, plan: Summary, ledger: Sequence[Summary]) -> Iterator[Block]:
    """One GPU's memory from end to end, and line by line; `plan` and `ledger` as in JSON."""
    totals = {heading: sum(line["num_bytes"] for line in ledger if line["group"] == heading) for heading in HEADINGS}
    totals[FREE] = max(0, plan["total_bytes"] - sum(totals.values()))
    whole = max(plan["total_bytes"], sum(totals.values()))
    shares = [Share(heading, part / whole, f"{part / GIB:,.2f} GiB") for heading, part in totals.items() if part]
    cache = (
        f"KV cache of {plan['kv_cache_tokens']:,} tokens in {plan['num_gpu_blocks']:,} blocks of {plan['block_size']}"
    )
    yield Stack(f"{name}: {plan['total_bytes'] / GIB:,.2f} GiB a GPU, {cache}", shares)
    rows = [(line["group"], line["name"], line["num_bytes"] / GIB, line["formula"], line["source"]) for line in ledger]
    yield Grid(Table(("", "entry", "GiB", "formula", "source"), rows), "Memory ledger")


def provenance(summary: Summary, given: Mapping[str, str], fleet: Summary | None) -> list[Block]:
    """What was run with, so that it can be run again; `given` are facts that a command has beside those that all have,
    `fleet` is the content of a fleet file.
    """
    facts = {
        "Model": str(summary["model_id"]),
        "GPU profile": str(summary.get("gpu") or "several"),
        "Engine arguments given": arguments_text(summary["engine"]) or "none: vLLM's defaults",
        "vLLM version": str(summary["vllm_version"]),
        "Servecast version": str(summary["servecast_version"]),
        "Trace": str(summary["trace"] or "a trace"),
        "Requests, SHA-256": str(summary["trace_sha256"]),
        **{name: str(summary[key]) for name, key in (("Requests kept", "limit"), ("Request rate asked for", "request_rate"),
           ("Rate scale", "rate_scale"), ("Most in flight", "max_concurrency"), ("Users", "users"), ("Seed", "seed")) if summary.get(key) is not None},
        **given,
    }  # fmt: skip
    blocks: list[Block] = [Facts("", list(facts.items()))]
    return blocks + ([Code("Fleet file", fleet_yaml(fleet).rstrip())] if fleet else [])


def confidence_blocks(confidence: Summary) -> Iterator[Block]:
    """How far the figures can be trusted, and whether one is at its limit."""
    yield Prose([f"How sure this is: {confidence['text']}."])
    if "at_limit" in confidence:
        yield Prose([f"{confidence['at_limit']['text']}."], is_warning=True)
