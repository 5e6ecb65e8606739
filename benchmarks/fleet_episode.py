"""A measured episode of autoscaling, replayed: `python -m benchmarks.fleet_episode ../shared/fleet [--seeds N]`.

llm-d's loop that follows latencies (guides/workload-autoscaling @d38c9f0c; means over repeated runs): Qwen3-32B, each replica on two
H100, three to eight of them, about 100 s until a new one is ready; seven stages at constant rates, 3,500 to 4,500 tokens in and
900 to 1,100 out. The share of requests within 3 s to the first token and 100 ms for each further one, and the mean number of replicas.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import yaml

import sim

EPISODE = "measured/autoscaling_slo_episode_qwen3-32b.csv"
FLEET: dict[str, Any] = {
    "pools": [{"replicas": 3}],
    "router": "llm_d",
    "autoscale": {"policy": "llm_d_slo", "min": 3, "max": 8, "start_up_s": 100},
}
STATIC: dict[str, Any] = {"pools": [{"replicas": 8}], "router": "llm_d"}
LENGTHS = {
    "type": "random",
    "input_distribution": {"min": 3500, "max": 4500, "mean": 4000, "std_dev": 300},
    "output_distribution": {"min": 900, "max": 1100, "mean": 1000, "std_dev": 80},
}
MOST_POINTS, MOST_OFF = 0.03, 0.10


class Figures(NamedTuple):
    attainment: float
    mean_replicas: float


MEASURED = {"the loop": Figures(0.958, 5.93), "8 replicas": Figures(1.0, 8.0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    print("\n".join(report(given.folder, given.seeds)))


def report(folder: Path, seeds: int) -> Iterator[str]:
    """A row a run, and whether it keeps what is asked of a forecast."""
    yield "| fleet | seed | within the SLO measured | simulated | mean replicas measured | simulated | |"
    yield "|---|---|---|---|---|---|---|"
    for name, fleet in (("the loop", FLEET), ("8 replicas", STATIC)):
        for seed in range(seeds):
            yield row(name, seed, MEASURED[name], replayed(folder, fleet, seed))


def row(name: str, seed: int, measured: Figures, found: Figures) -> str:
    points = found.attainment - measured.attainment
    off = found.mean_replicas / measured.mean_replicas - 1
    kept = abs(points) <= MOST_POINTS and abs(off) <= MOST_OFF
    verdict = f"{'' if kept else 'not '}within {MOST_POINTS * 100:.0f} points and {MOST_OFF:.0%}"
    figures = (
        f"{measured.attainment:.1%} | {found.attainment:.1%} | {measured.mean_replicas:.2f} | {found.mean_replicas:.2f}"
    )
    return f"| {name} | {seed} | {figures} | {verdict} |"


def replayed(folder: Path, fleet: dict[str, Any], seed: int) -> Figures:
    """The episode through a fleet."""
    with TemporaryDirectory() as place:
        load = Path(place) / "episode.yaml"
        load.write_text(yaml.safe_dump({"load": {"type": "constant", "stages": stages(folder)}, "data": LENGTHS}))
        found = sim.simulate(
            "Qwen3-32B", "h100-sxm", load, engine=sim.EngineConfig(tensor_parallel_size=2), fleet=fleet,
            slo=("ttft_p90=3s", "tpot_p90=100ms"), seed=seed, intervals=False,
        ).summary  # fmt: skip
    return Figures(found["slo_attainment"], found.get("mean_replicas", 8.0))


def stages(folder: Path) -> list[dict[str, float]]:
    with (folder / EPISODE).open() as file:
        return [{"rate": float(row["const_rps"]), "duration": float(row["dur_s"])} for row in csv.DictReader(file)]


if __name__ == "__main__":
    main()
