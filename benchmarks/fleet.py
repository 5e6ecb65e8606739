"""Eight replicas behind llm-d's routers and behind none, replayed: `python -m benchmarks.fleet ../shared/fleet [--seeds N]`.

The ladder of llm-d's guides (optimized-baseline @021723b8, precise-prefix-cache-routing @0aa9f337): Qwen3-32B, each replica on two
H100, sixteen Poisson stages after one that warms caches. Stages drain, and the rate of a stage counts its drain. Weights and engine
arguments are those of stored versions of the guides, looked up after the default ones had missed (docs/fleet.md says by how much);
what they leave open is as vLLM has it, in the version that a manifest of the guide names (@ae9f98f1).

TTFTs are the client's, here and there (`clock="client"`). The precise router tokenizes each prompt before a server does, which is added to its: the arm is judged with it as
well as without.
"""

import argparse
import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

import sim
from benchmarks import fleet_episode
from sim.cluster.front_end import TOKENIZED_S

LADDER = "measured/llmd_routing_ladder_qwen3-32b_8xTP2_16xH100.csv"
AGAIN = "measured/llmd_routing_qwen3-32b_8xTP2_h100.csv"  # a later publication, of an arm without a router and of another with one
WORKLOAD = "workloads/guide_{}_1.yaml.in"
LONG_QUEUES = ((20, 35), (40, 60))  # requests/s; stages of one kind, which differ little in what they ask
SATURATED_S = 5.0  # mean TTFT; measured ones are below 0.9 or above 18 s
PROMPT_TOKENS = 7200
VLLM_VERSION = "0.19.1"
PLAIN = sim.EngineConfig(tensor_parallel_size=2)
PRECISE = sim.EngineConfig(tensor_parallel_size=2, block_size=64, gpu_memory_utilization=0.95)  # its patch-vllm.yaml


class Arm(NamedTuple):
    """What was measured, under a short name, its router here, and the guide whose load it had; the errors are what is asked of a forecast."""

    name: str
    measured: str
    router: str
    guide: str
    engine: sim.EngineConfig = PLAIN
    most_throughput_error: float = 0.12
    most_ttft_error: float = 0.30
    router_s: float = 0.0


NO_ROUTER = Arm("none", "k8s-round-robin", "round_robin", "optimized-baseline", most_ttft_error=0.10)
ARMS = (
    NO_ROUTER,
    NO_ROUTER._replace(router="random"),  # as kube-proxy's iptables choose
    Arm("scorers", "llmd-optimized-baseline", "llm_d:no_hit_lru=2", "optimized-baseline"),
    Arm(
        "precise",
        "llmd-precise-prefix",
        "llm_d_precise:no_hit_lru=2",
        "precise-prefix-cache-routing",
        PRECISE,
        router_s=PROMPT_TOKENS * TOKENIZED_S,
    ),
)


class Figures(NamedTuple):
    """Of a stage."""

    output_throughput: float
    mean_ttft_s: float


class Stage(NamedTuple):
    rate: float
    measured: Figures
    simulated: Figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    ladders = []
    for arm in ARMS:
        for seed in range(given.seeds):
            stages = replayed(given.folder, arm, seed)
            if seed == 0:
                ladders.append((arm, stages))
            print(f"- {arm.name} as `{arm.router}`, seed {seed}: {'; '.join(verdict(arm, stages))}", flush=True)
            if arm.name == "none":
                print(f"  {'; '.join(draws(given.folder, stages))}", flush=True)
    print("", *table(ladders), sep="\n")
    print("\nA measured episode of autoscaling:\n")
    print("\n".join(fleet_episode.report(given.folder, given.seeds)))


def replayed(folder: Path, arm: Arm, seed: int) -> list[Stage]:
    """The stages after the one that warms caches, measured and simulated."""
    with (folder / LADDER).open() as file:
        rows = [row for row in csv.DictReader(file) if row["arm"] == arm.measured]
    found = sim.simulate(
        "Qwen3-32B", "h100-sxm", folder / WORKLOAD.format(arm.guide),
        engine=arm.engine, vllm_version=VLLM_VERSION, replicas=8, router=arm.router, seed=seed, clock="client",
        intervals=False,
    )  # fmt: skip
    return [
        Stage(
            float(row["poisson_rps"]),
            Figures(float(row["out_tok_s"]), float(row["ttft_mean_s"])),
            Figures(stage["output_throughput"], stage["mean_ttft_ms"] / 1e3),
        )
        for row, stage in zip(rows, found.summary["stages"][1:], strict=True)
    ]


def table(ladders: Sequence[tuple[Arm, Sequence[Stage]]]) -> Iterator[str]:
    """Output tokens/s and mean TTFT in seconds, measured and simulated, of all arms with seed 0."""
    columns: dict[str, list[Figures]] = {}
    for arm, stages in ladders:
        columns[f"{arm.name}: measured"] = [stage.measured for stage in stages]
        columns[f"`{arm.router.partition(':')[0]}`"] = [stage.simulated for stage in stages]
    yield f"| req/s | {' | '.join(columns)} |"
    yield "|---" * (len(columns) + 1) + "|"
    for stage, *row in zip(ladders[0][1], *columns.values(), strict=True):
        cells = (f"{figures.output_throughput:,.0f}, {figures.mean_ttft_s:.2f}" for figures in row)
        yield f"| {stage.rate:g} | {' | '.join(cells)} |"


def verdict(arm: Arm, stages: Sequence[Stage]) -> Iterator[str]:
    """Where it saturates, and the errors of the saturated stages, or of all where none is measured to be."""
    simulated = _begins((stage.rate, stage.simulated) for stage in stages)
    measured = _begins((stage.rate, stage.measured) for stage in stages)
    yield f"saturates {simulated} (measured: {measured})"
    judged = [stage for stage in stages if stage.measured.mean_ttft_s > SATURATED_S] or stages
    throughputs = [stage.simulated.output_throughput / stage.measured.output_throughput - 1 for stage in judged]
    yield _error("output tok/s", throughputs, arm.most_throughput_error)
    for added_s in dict.fromkeys((0.0, arm.router_s)):
        ttfts = [(stage.simulated.mean_ttft_s + added_s) / stage.measured.mean_ttft_s - 1 for stage in judged]
        name = f"mean TTFT with the router's {added_s * 1e3:.0f} ms" if added_s else "mean TTFT"
        yield _error(name, ttfts, arm.most_ttft_error)


def draws(folder: Path, stages: Sequence[Stage]) -> Iterator[str]:
    """What tells a router that draws from one that takes turns, and how the later publication is met."""
    for first, last in LONG_QUEUES:
        alike = [stage for stage in stages if first <= stage.rate <= last]
        simulated = _scatter([stage.simulated.output_throughput for stage in alike])
        measured = _scatter([stage.measured.output_throughput for stage in alike])
        yield f"output tok/s from {first} to {last} req/s scatter by {simulated:.1%} (measured: {measured:.1%})"
    with (folder / AGAIN).open() as file:
        again = {float(row["rate"]): float(row["rr_output_tps"]) for row in csv.DictReader(file)}
    off = [
        stage.simulated.output_throughput / again[stage.rate] - 1 for stage in stages if stage.rate >= LONG_QUEUES[0][0]
    ]
    yield f"the later publication's {_error('output tok/s', off, 0.12)}"


def _scatter(figures: Sequence[float]) -> float:
    return stdev(figures) / mean(figures)


def _begins(stages: Iterable[tuple[float, Figures]]) -> str:
    return next((f"from {rate:g} req/s" for rate, figures in stages if figures.mean_ttft_s > SATURATED_S), "nowhere")


def _error(name: str, off: Sequence[float], most: float) -> str:
    """The median over stages, by size, and the worst."""
    typical = median(map(abs, off))
    return f"{name} off by {typical:.0%} (worst {max(off, key=abs):+.0%}), {'' if typical <= most else 'not '}within {most:.0%}"


if __name__ == "__main__":
    main()
