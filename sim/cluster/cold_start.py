"""How long a new replica takes until it is ready, by phase: image, process, weights, compilation, graphs, profiling.

`cold_starts.json` is written by benchmarks/fit_cold_starts.py from measured starts, with the source of each number.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

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

    def phases(self, weights_bytes: float, *, enforce_eager: bool = False) -> dict[str, float]:
        """Seconds of each phase, one after the other, with so many bytes of weights on each GPU.

        Eager engines neither compile nor capture graphs.
        """
        if self.seconds is not None:
            return {"given_s": self.seconds}
        known = _measured()
        bytes_per_s = known["weights_gb_per_s"][self.weights]["value"] * GIGA
        compiled = {"compile_s": known["compile_s"][self.compile]["value"], "graphs_s": known["graphs_s"]["value"]}
        return {
            "image_s": known["image_s"][self.image]["value"],
            "process_s": known["process_s"]["value"],
            "weights_s": weights_bytes / bytes_per_s,
            **({} if enforce_eager else compiled),
            "profiling_s": known["profiling_s"]["value"],
        }


@cache
def _measured() -> Any:
    return json.loads(MEASURED.read_text())
