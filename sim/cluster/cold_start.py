"""How long a new replica takes until it is ready, by phase: image, process, weights, compilation, graphs, profiling.

`cold_starts.json` is written by benchmarks/fit_cold_starts.py from measured starts, with the source of each number.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sim.cluster.options import option
from sim.units import GIGA

MEASURED = Path(__file__).with_name("cold_starts.json")
IMAGES = ("cached", "streamed", "pulled")
WEIGHTS = ("typical", "nfs", "fastsafetensors", "nvme", "p2p")
COMPILES = ("cold", "cached")


@dataclass(frozen=True)
class StartUp:
    """Where the image and the weights come from, and whether compiled graphs are in a cache; or simply `seconds`."""

    image: str = option("cached", choices=IMAGES)
    weights: str = option("typical", choices=WEIGHTS)
    compile: str = option("cold", choices=COMPILES)
    seconds: float | None = option(None, kind=float, at_least=0)


class Phases(NamedTuple):
    """Seconds of each phase, one after the other."""

    image_s: float
    process_s: float
    weights_s: float
    compile_s: float
    graphs_s: float
    profiling_s: float


def phases(weights_bytes: float, start_up: StartUp, *, enforce_eager: bool = False) -> Phases:
    """The phases of a start with so many bytes of weights a GPU; eager engines neither compile nor capture graphs."""
    known = _measured()
    bytes_per_s = known["weights_gb_per_s"][start_up.weights]["value"] * GIGA
    return Phases(
        image_s=known["image_s"][start_up.image]["value"],
        process_s=known["process_s"]["value"],
        weights_s=weights_bytes / bytes_per_s,
        compile_s=0.0 if enforce_eager else known["compile_s"][start_up.compile]["value"],
        graphs_s=0.0 if enforce_eager else known["graphs_s"]["value"],
        profiling_s=known["profiling_s"]["value"],
    )


def start_up_s(weights_bytes: float, start_up: StartUp, *, enforce_eager: bool = False) -> float:
    """From the decision to start a replica until it is ready, in seconds."""
    if start_up.seconds is not None:
        return start_up.seconds
    return sum(phases(weights_bytes, start_up, enforce_eager=enforce_eager))


@cache
def _measured() -> Any:
    return json.loads(MEASURED.read_text())
