"""A run over simulated time: queues, KV cache, tokens, what steps ran, and what requests waited for."""

from collections.abc import Iterator, Mapping

from sim.engine.records import Floats
from sim.metrics.grid import Band
from sim.metrics.timeline import Timeline
from sim.report.figures.theme import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Figure,
    Trace,
    axis,
    figure,
    line,
    numbers,
    points,
    see_through,
)

TIME = "simulated time (s)"
WORK = {"prefill": ("prefill", ORANGE), "mixed": ("mixed", SKY), "decode": ("decode", BLUE)}
GRAPHS = {"full": ("full CUDA graph", GREEN), "piecewise": ("piecewise graphs", SKY), "none": ("eager", VERMILLION)}
LACKS = {
    "token_budget": ("token budget", SKY),
    "max_num_seqs": ("max_num_seqs", ORANGE),
    "kv_space": ("KV space", PURPLE),
}


def timeline_figures(found: Timeline) -> dict[str, Figure]:
    """By name, one below the other over the same time; replicas only where they come and go."""
    drawn = {
        "requests": requests_figure(found),
        "kv_cache": kv_cache_figure(found),
        "tokens": tokens_figure(found),
        "work": work_figure(found),
        "graphs": graphs_figure(found),
    }
    if any(share.any() for share in found.lacks.values()):
        drawn["waiting"] = waiting_figure(found)
    if found.num_replicas.min() < found.num_replicas.max():
        drawn["replicas"] = replicas_figure(found)
    return drawn


def requests_figure(found: Timeline) -> Figure:
    """Running and waiting requests."""
    running, waiting = (
        _banded(found, "running", found.num_running, BLUE),
        _banded(found, "waiting", found.num_waiting, VERMILLION),
    )
    return _figure(found, [*running, *waiting], "Requests", axis("requests", rangemode="tozero"))


def kv_cache_figure(found: Timeline) -> Figure:
    """KV blocks in use, and where requests were preempted."""
    traces = list(_banded(found, "in use", found.kv_cache_usage, PURPLE, scale=100, unit=" %"))
    preempting = found.num_preempted > 0
    if preempting.any():
        at_s, counts = numbers(found.starts_s[preempting]), found.num_preempted[preempting].astype(int).tolist()
        label = f"{sum(counts):,} preemptions"
        told = "%{customdata} preempted"
        traces.append(
            points(at_s, [100] * len(at_s), label, VERMILLION, "triangle-down", customdata=counts, hovertemplate=told)
        )
    return _figure(found, traces, "KV cache usage", axis("% of blocks", rangemode="tozero"))


def tokens_figure(found: Timeline) -> Figure:
    """Prompt tokens computed, and tokens generated, a second."""
    traces = [
        line(numbers(found.starts_s), numbers(rates), name, colour, line={"shape": "hv", "dash": dash})
        for name, rates, colour, dash in (
            ("prompt tokens", found.prompt_tokens_per_s, ORANGE, "dot"),
            ("output tokens", found.output_tokens_per_s, BLUE, "solid"),
        )
    ]
    return _figure(found, traces, "Tokens a second", axis("tokens/s", rangemode="tozero"))


def work_figure(found: Timeline) -> Figure:
    """What the steps ran: prompts, decodes or both."""
    return _shares(found, "Batch composition", found.work, WORK)


def graphs_figure(found: Timeline) -> Figure:
    """In which CUDA graph the steps ran."""
    return _shares(found, "CUDA graph or eager", found.graphs, GRAPHS)


def waiting_figure(found: Timeline) -> Figure:
    """What kept requests waiting."""
    return _shares(found, "What waiting requests lacked", found.lacks, LACKS)


def replicas_figure(found: Timeline) -> Figure:
    """How many hold GPUs."""
    trace = line(numbers(found.starts_s), numbers(found.num_replicas), "replicas", GREY, line={"shape": "hv"})
    return _figure(found, [trace], "Replicas that hold GPUs", axis("replicas", rangemode="tozero"))


def _figure(found: Timeline, traces: list[Trace], title: str, y: Trace) -> Figure:
    ends = numbers([found.starts_s[0], found.starts_s[-1] + found.interval_s])
    return figure(traces, title, x=axis(TIME, range=ends), y=y)


def _banded(
    found: Timeline, name: str, band: Band, colour: str, *, scale: float = 1.0, unit: str = ""
) -> Iterator[Trace]:
    """The mean as a line, from the lowest to the highest as an area around it."""
    x = numbers(found.starts_s)
    edge = {"line": {"width": 0, "shape": "hv"}, "legendgroup": name, "showlegend": False, "hoverinfo": "skip"}
    yield line(x, numbers(band.lowest, scale), name, colour, **edge)
    fill = {"fill": "tonexty", "fillcolor": see_through(colour, 0.22)}
    yield line(x, numbers(band.highest, scale), name, colour, **edge, **fill)
    ends = list(zip(numbers(band.lowest, scale), numbers(band.highest, scale), strict=True))
    told = f"%{{y:,.4~g}}{unit} (%{{customdata[0]:,.4~g}} to %{{customdata[1]:,.4~g}})"
    shape = {"shape": "hv"}
    yield line(
        x, numbers(band.mean, scale), name, colour, line=shape, legendgroup=name, customdata=ends, hovertemplate=told
    )


def _shares(found: Timeline, title: str, shares: Mapping[str, Floats], named: Mapping[str, tuple[str, str]]) -> Figure:
    """Stacked shares of the replicas' time; what is missing to 100 % they spent otherwise."""
    traces = [
        line(
            numbers(found.starts_s),
            numbers(shares[key], 100),
            name,
            colour,
            line={"width": 0.5, "shape": "hv"},
            stackgroup="all",
            fillcolor=see_through(colour, 0.75),
            hovertemplate="%{y:.1f} %",
        )
        for key, (name, colour) in named.items()
        if shares[key].any()
    ]
    y = axis("% of time", range=[0, 100.5])
    return _figure(found, traces, title, y)
