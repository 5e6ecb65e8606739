"""Pages of every command, and one page with what is on them."""

import json
import tempfile
from functools import cache
from pathlib import Path

import sim
from sim.measure.validate import Validation
from sim.metrics.distributions import distributions
from sim.report.page.blocks import Page, Section
from sim.report.page.comparison import comparison_page, results_page
from sim.report.page.measured import validation_page
from sim.report.page.render import html_of
from sim.report.page.run import run_page
from sim.report.page.search import capacity_page, optimization_page
from sim.report.page.trace import trace_page
from tests import results
from tests.measure.makers import make_run

LLAMA = ("Llama-3.1-8B", "h100-sxm", "chat")
IN_THE_BROWSER = {
    "fleet": {"fleet"},
    "optimize": {"overview", "candidates"},
    "capacity": {"curve"},
    "compare": {"overview"},
    "results": {"assertions", "figures"},
    "validate": {"overview"},
    "trace": {"overview"},
}
"""The sections beside all of the run's that have what the run's have not."""


@cache
def pages() -> dict[str, Page]:
    """By what they are of."""
    trace = results.crowded().trace
    return {
        "run": run_page(results.crowded().told),
        "fleet": run_page(results.fleet().told),
        "optimize": _optimize(),
        "capacity": capacity_page(
            sim.capacity(*LLAMA, limit=30, slo=["ttft_p99=500ms"], rate=90, intervals=False).summary
        ),
        "compare": _compare(),
        "results": _results(),
        "validate": _validate(),
        "trace": trace_page(trace, {"Requests": f"{len(trace):,}"}),
    }


def _optimize() -> Page:
    space = {"max_num_seqs": [4, 64], "max_model_len": [512, 8192]}
    found = sim.optimize(*LLAMA, limit=30, slo=["e2el_p99=9s"], objective="throughput,latency", space=space, trials=4)
    return optimization_page(found.summary)


def _compare() -> Page:
    found = sim.compare(*LLAMA, limit=30, vary=["max_num_seqs=4", "max_model_len=512"], intervals=False)
    known = {name: distributions(result.records) for name, result in found.results.items()}
    return comparison_page(found.compared, found.summary, found.rows, known)


def _results() -> Page:
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(("before", "after")):
            measured = {
                "completed": 9,
                "mean_ttft_ms": 100.0 - number,
                "p99_itl_ms": 9.0,
                "ttfts": [0.1 * n for n in range(9)],
            }
            Path(folder, f"{name}.json").write_text(json.dumps(measured | {"output_throughput": 50.0, "duration": 9.0}))
        names = [f"{folder}/{name}.json" for name in ("before", "after")]
        found = sim.compare_results(names, asserts=["mean_ttft_ms<100"])
    return results_page(found.summary, {run.name: run.samples_ms for run in found.runs})


def _validate() -> Page:
    with tempfile.TemporaryDirectory() as folder:
        runs = [make_run(Path(folder)), make_run(Path(folder), id="other", gpu="h1000")]
        found: Validation = sim.validate(runs, intervals=False)
    return validation_page(found.to_json())


@cache
def everything() -> str:
    """What a browser looks at, as one file."""
    sections = [
        Section(f"{name}-{section.name}", section.title, section.blocks)
        for name, page in pages().items()
        for section in page.sections
        if section.name in IN_THE_BROWSER.get(name, {section.name})
    ]
    return html_of(Page("Everything", "All pages", ["one below the other"], sections))
