"""What all figures have in common: colours, axes, hover texts. A figure is a dict with `data` and `layout` in plotly's schema.

Colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color), which the colour-blind tell apart, as far as lines in them
have a contrast of 3 and more on white and on DARK's paper; no meaning is in a colour alone.
"""

from collections.abc import Iterable, Sequence
from math import ceil, floor, inf, isfinite, log10
from typing import Any

Figure = dict[str, Any]
Trace = dict[str, Any]

BLUE, VERMILLION, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#C46A9B", "#7F8793"
ORANGE, SKY = "#E69F00", "#56B4E9"
"""For areas alone."""
SERIES = (BLUE, VERMILLION, GREEN, PURPLE, GREY, SKY, ORANGE)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
LIGHT = {"paper": "#ffffff", "ink": "#1c2733", "muted": "#5a6776", "grid": "#e4e8ee", "hover": "#ffffff"}
DARK = {"paper": "#171d24", "ink": "#e6ebf1", "muted": "#9aa7b5", "grid": "#2b343f", "hover": "#232b35"}
HEIGHT = 260
DIGITS = 5
SUBS = ((2, (1, 2, 5)), (3, (1, 3)), (inf, (1,)))
"""What is labelled of each decade of a logarithmic axis of at most so many."""
LOG_FROM = 5.0
"""Times as much as the lowest is the highest value of a logarithmic axis, at least."""


def figure(traces: Sequence[Trace], title: str, *, x: Trace, y: Trace, height: int = HEIGHT, **layout: Any) -> Figure:
    """Traces under a title, with named axes; whoever draws it gives it the template of `light` or of `dark`."""
    return {
        "data": list(traces),
        "layout": {
            "title": {"text": title},
            "height": height,
            "xaxis": x,
            "yaxis": y,
            "showlegend": len([trace for trace in traces if trace.get("showlegend", "name" in trace)]) > 1,
            **layout,
        },
    }


def template(colours: dict[str, str]) -> dict[str, Any]:
    """The template of figures on LIGHT or DARK."""
    axis = {
        "gridcolor": colours["grid"],
        "linecolor": colours["grid"],
        "zerolinecolor": colours["grid"],
        "tickfont": {"color": colours["muted"]},
        "title": {"font": {"color": colours["muted"], "size": 12}, "standoff": 8},
        "automargin": True,
        "exponentformat": "none",
        "separatethousands": True,
    }
    return {
        "layout": {
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": FONT, "size": 12, "color": colours["ink"]},
            "margin": {"l": 12, "r": 12, "t": 12, "b": 12},
            "colorway": list(SERIES),
            "xaxis": axis,
            "yaxis": axis,
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"},
            "hovermode": "x unified",
            "hoverlabel": {"bgcolor": colours["hover"], "font": {"color": colours["ink"]}},
        }
    }


def axis(title: str, lowest: float | None = None, highest: float | None = None, **more: Any) -> Trace:
    """An axis with a title, logarithmic where values from `lowest` to `highest` differ by enough."""
    is_log = lowest is not None and highest is not None and 0 < LOG_FROM * lowest <= highest
    return {
        "title": {"text": title},
        **(_logarithmic(lowest, highest) if is_log and lowest and highest else {}),
        **more,
    }


def _logarithmic(lowest: float, highest: float) -> Trace:
    """With 1, 2 and 5 of each decade, of many decades with fewer of these."""
    first, last = floor(log10(lowest)), ceil(log10(highest))
    subs = next(subs for most, subs in SUBS if last - first <= most)
    marks = [sub * 10.0**decade for decade in range(first, last + 1) for sub in subs]
    return {"type": "log", "tickmode": "array", "tickvals": marks, "ticktext": [f"{mark:,g}" for mark in marks]}


def numbers(values: Iterable[float], scale: float = 1.0) -> list[float | None]:
    """With as many digits as can be seen; None for what is none."""
    scaled = (float(value) * scale for value in values)
    return [float(f"{value:.{DIGITS}g}") if isfinite(value) else None for value in scaled]


def line(x: Sequence[Any], y: Sequence[Any], name: str, colour: str, **more: Any) -> Trace:
    """A line trace."""
    style = {"color": colour, "width": 2} | more.pop("line", {})
    return {"type": "scatter", "mode": "lines", "x": x, "y": y, "name": name, "line": style, **more}


def points(x: Sequence[Any], y: Sequence[Any], name: str, colour: str, symbol: str, **more: Any) -> Trace:
    """A trace of markers."""
    style = {"color": colour, "symbol": symbol, "size": 9} | more.pop("marker", {})
    return {"type": "scatter", "mode": "markers", "x": x, "y": y, "name": name, "marker": style, **more}


def see_through(colour: str, share: float) -> str:
    """A colour of which so much is seen."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{share:g})"


def across(value: float, colour: str, along: str = "y") -> Trace:
    """A shape: a line at a value of an axis, from end to end of the other."""
    other = "x" if along == "y" else "y"
    ends = {f"{along}0": value, f"{along}1": value, f"{other}0": 0, f"{other}1": 1}
    return {"type": "line", **ends, f"{other}ref": "paper", "line": {"color": colour, "width": 1.5, "dash": "dash"}}
