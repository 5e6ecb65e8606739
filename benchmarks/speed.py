"""How fast the engine is: `python -m benchmarks.speed [CASE ...] [--repeat N] [--traces FOLDER]` prints a table.

Each case runs twice over: in this process, where the simulation alone is timed, and as `servecast simulate` in one of its
own, which is timed whole: start, imports, reading, simulating, JSON. Both look for garbage as seldom as the command does.
CPU seconds count; the machine's own speed stands in the first line as bare SimPy timeouts a second, measured in the same
run, so that machines can be compared. It also says whether the engine is compiled: `make speed` runs it so.
"""

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import simpy

from sim.cli import PATIENT_GC
from sim.cli.version import version_line
from sim.cluster.fleet_plan import FleetPlan
from sim.cluster.simulation import simulate
from sim.deployment import deploy
from sim.fleet import DEFAULT_ROUTER, DeployedFleet, deploy_fleet
from sim.specs.engine import EngineConfig
from sim.specs.speculative_config import SpeculativeConfig
from sim.workload.readers import read_trace
from sim.workload.tile import tile
from sim.workload.trace import Trace
from sim.workload.writers import write_trace

MODEL, GPU, NUM_BLOCKS = "Llama-3.1-8B", "h100-sxm", 27_000
LIMITS = EngineConfig(max_num_seqs=256, max_num_batched_tokens=2048, num_gpu_blocks_override=NUM_BLOCKS)
NUM_TIMEOUTS = 500_000


class Case(NamedTuple):
    """A trace, made from the folder of real ones, the blocks that a replica has, the longest request allowed, and who serves.

    What `engine` has beside the limits the `flags` say as well; a `fleet` stands for replicas and router.
    """

    make: Callable[[Path], Trace]
    num_gpu_blocks: int = NUM_BLOCKS
    max_model_len: int = 131_072
    model: str = MODEL
    gpu: str = GPU
    num_replicas: int = 1
    router: str = DEFAULT_ROUTER
    engine: EngineConfig = LIMITS
    flags: tuple[str, ...] = ()
    fleet: dict[str, Any] | None = None


def azure(folder: Path, rate_scale: float = 1.0) -> Trace:
    return read_trace(folder / "azure_llm_2023_conv.csv", rate_scale=rate_scale)


def azure_with_adapters(folder: Path) -> Trace:
    """Every fourth request asks for none, the others for three by turns."""
    trace = azure(folder)
    return replace(trace, lora_name=tuple(("", "one", "two", "three")[row % 4] for row in range(len(trace))))


def million(folder: Path) -> Trace:
    trace = azure(folder)
    return tile(trace, -(-1_000_000 // len(trace))).first(1_000_000)


def million_for_a_hundred(folder: Path) -> Trace:
    """The same requests a hundred times as fast."""
    trace = azure(folder, 100.0)
    return tile(trace, -(-1_000_000 // len(trace))).first(1_000_000)


def million_of_prefixes(folder: Path) -> Trace:
    """As `shared_prefixes`, at 100 requests a second."""
    trace = shared_prefixes(folder)
    trace = replace(trace, arrival_s=trace.arrival_s * 0.6)
    return tile(trace, -(-1_000_000 // len(trace))).first(1_000_000)


def burst(_: Path) -> Trace:
    """Ten thousand requests of 550 + 248 tokens, all at once."""
    count = 10_000
    return Trace(
        request_id=tuple(f"r{number}" for number in range(count)),
        arrival_s=np.zeros(count),
        prompt_tokens=np.full(count, 550),
        output_tokens=np.full(count, 248),
        source="burst",
    )


def mooncake(folder: Path) -> Trace:
    return read_trace(folder / "mooncake_conversation.jsonl")


def shared_prefixes(_: Path) -> Trace:
    """18,000 requests of 6,000 tokens, one of 150 prefixes, and 1,200 of their own; 1,000 tokens out, 60 requests a second."""
    drawn, count = np.random.default_rng(0), 18_000
    prefixes = drawn.integers(150, size=count).tolist()
    return Trace(
        request_id=tuple(f"r{number}" for number in range(count)),
        arrival_s=np.cumsum(drawn.exponential(1 / 60, size=count)),
        prompt_tokens=np.full(count, 7_200),
        output_tokens=np.full(count, 1_000),
        segments=tuple(((prefix, 6_000), (150 + number, 1_200)) for number, prefix in enumerate(prefixes)),
        source="shared prefixes",
    )


ROLES = {
    "pools": [
        {"name": "prompts", "role": "prefill", "replicas": 2},
        {"name": "answers", "role": "decode", "replicas": 2},
    ]
}
DRAFTS = {
    "method": "eagle3",
    "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    "num_speculative_tokens": 3,
    "rejection_sample_method": "synthetic",
    "synthetic_acceptance_length": 2.5,
}
WITH_DRAFTS = Case(
    azure,
    engine=replace(LIMITS, speculative_config=SpeculativeConfig.parse(DRAFTS)),
    flags=("--speculative-config", json.dumps(DRAFTS)),
)
EXPERTS = Case(azure, max_model_len=40_960, model="Qwen3-30B-A3B")


def with_stages(number: int, case: Case = Case(azure)) -> Case:  # noqa: B008 - it does not change
    limits = replace(case.engine, pipeline_parallel_size=number)
    return case._replace(engine=limits, flags=(*case.flags, "--pipeline-parallel-size", str(number)))


def twice(case: Case) -> Case:
    limits = replace(case.engine, data_parallel_size=2)
    return case._replace(engine=limits, flags=("--data-parallel-size", "2"))


CASES = {
    "azure x1": Case(azure),
    "azure x2": Case(lambda folder: azure(folder, 2.0)),
    "azure x4": Case(lambda folder: azure(folder, 4.0)),
    "azure x1, million": Case(million),
    "burst 10,000": Case(burst),
    "mooncake": Case(mooncake),
    "azure x4, 2,000 blocks": Case(lambda folder: azure(folder, 4.0), 2_000, 16_384),
    "prefixes, plain": Case(shared_prefixes, 27_000, 16_384, "Qwen3-32B", "h200-sxm", 16),
    "prefixes, windows": Case(shared_prefixes, 114_000, 16_384, "gpt-oss-120b", "h200-sxm", 16),
    "prefixes, few blocks": Case(shared_prefixes, 14_000, 16_384, "gpt-oss-120b", "h200-sxm", 16),
    "azure x1, CPU tier": Case(
        azure, engine=replace(LIMITS, kv_offloading_size=50), flags=("--kv-offloading-size", "50")
    ),
    "azure x1, adapters": Case(
        azure_with_adapters,
        engine=replace(LIMITS, enable_lora=True, max_loras=4),
        flags=("--enable-lora", "--max-loras", "4"),
    ),
    "azure x1, drafts": WITH_DRAFTS,
    "azure x4, drafts": WITH_DRAFTS._replace(make=lambda folder: azure(folder, 4.0)),
    "azure x1, 2 stages": with_stages(2),
    "azure x1, 4 stages": with_stages(4),
    "azure x1, 2 engines": twice(Case(azure)),
    "azure x1, experts": EXPERTS,
    "azure x1, 2 ranks": twice(EXPERTS),
    "azure x1, 2 ranks of 2 stages": with_stages(2, twice(EXPERTS)),
    "azure x1, roles": Case(azure, max_model_len=16_384, fleet=ROLES),
    "azure, 100 replicas": Case(million_for_a_hundred, num_replicas=100, router="llm_d"),
    "prefixes, 100 replicas": Case(million_of_prefixes, 27_000, 16_384, "Qwen3-32B", "h200-sxm", 100, "llm_d"),
}


class Timing(NamedTuple):
    """CPU and wall seconds of one run."""

    cpu_s: float
    wall_s: float


def main() -> None:
    """Run the cases asked for and print a row for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all when none is named")
    parser.add_argument("--repeat", type=int, default=3, help="runs a case, of which the fastest counts")
    parser.add_argument("--router", help="before the replicas of each case, in place of its own")
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"))
    arguments = parser.parse_args()
    gc.set_threshold(PATIENT_GC)
    timeouts_s = min(bare_timeouts_s() for _ in range(5))
    print(f"{NUM_TIMEOUTS / timeouts_s / 1e6:.2f} M bare SimPy timeouts a CPU second; {version_line()}")
    print(HEADER)
    for name in arguments.cases or CASES:
        case = CASES[name]._replace(router=arguments.router) if arguments.router else CASES[name]
        print(row(name, case, arguments.traces, arguments.repeat, timeouts_s), flush=True)
    for decodes in (8, 1024):
        print(f"{step_cost_us(decodes):.3f} us a step with a prompt at {decodes:,} running requests, the median of 5")


HEADER = (
    f"{'case':24}{'requests':>10}{'out tokens':>12}{'steps':>10}{'preempt':>8}{'hits %':>7}{'sim CPU s':>10}{'spread %':>9}"
    f"{'wall s':>8}{'k req/s':>9}{'M tok/s':>9}{'x timeouts':>11}{'process s':>10}{'x':>6}{'peak MB':>9}"
)


def row(name: str, case: Case, folder: Path, repeat: int, timeouts_s: float) -> str:
    """Simulate the case a few times in this process, and as often in ones of its own."""
    trace = case.make(folder)
    plan = fleet_plan(case)
    timings = []
    for _ in range(repeat):
        timing, records = timed(lambda: simulate(trace, plan).merged)
        timings.append(timing)
    best = min(timings)
    spread = 100 * (max(timings).cpu_s / best.cpu_s - 1)
    tokens = int(records.requests.generated_tokens.sum())
    hits = 100 * records.prefix_cache_hits / max(1, records.prefix_cache_queries)
    process_s, peak_mb = map(min, zip(*(whole_process(trace, case) for _ in range(repeat)), strict=True))
    return (
        f"{name:24}{len(trace):>10,}{tokens:>12,}{records.leaps.num_ran_steps:>10,}"
        f"{int(records.requests.num_preemptions.sum()):>8,}{hits:>7.1f}{best.cpu_s:>10.3f}{spread:>9.0f}{best.wall_s:>8.2f}"
        f"{len(trace) / best.cpu_s / 1e3:>9.1f}{tokens / best.cpu_s / 1e6:>9.2f}{best.cpu_s / timeouts_s:>11.2f}"
        f"{process_s:>10.2f}{process_s / timeouts_s:>6.1f}{peak_mb:>9.0f}"
    )


def fleet_plan(case: Case) -> FleetPlan:
    """vLLM's newest defaults but for the limits above and the case's own."""
    if case.fleet is not None:
        return deploy_fleet(case.model, case.gpu, limits(case), case.fleet).plan()
    deployed = deploy(case.model, case.gpu, limits(case))
    if case.engine.data_parallel_size > 1:
        return DeployedFleet.alike(deployed, case.engine).plan()
    return FleetPlan.alike(deployed.config, deployed.step_time, case.num_replicas, case.router, modes=deployed.modes)


def limits(case: Case) -> EngineConfig:
    """What is asked of each engine."""
    return replace(case.engine, num_gpu_blocks_override=case.num_gpu_blocks, max_model_len=case.max_model_len)


PROCESS = """
import sys
from sim.cli import main
try:
    main()
finally:
    print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0], file=sys.stderr)
"""


def timed(run: Callable[[], Any]) -> tuple[Timing, Any]:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    result = run()
    return Timing(time.process_time() - cpu_s, time.perf_counter() - wall_s), result


def whole_process(trace: Trace, case: Case) -> tuple[float, float]:
    """CPU seconds and peak memory in MB of `servecast simulate ... --json` on the trace as a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.jsonl" if trace.segments else "trace.csv")
        write_trace(replace(trace, source=str(path)), path)
        flags = ["--max-num-seqs", "256", "--max-num-batched-tokens", "2048"]
        flags += ["--num-gpu-blocks-override", str(case.num_gpu_blocks), "--max-model-len", str(case.max_model_len)]
        flags += case.flags
        if case.fleet is None and case.engine.data_parallel_size == 1:
            flags += ["--replicas", str(case.num_replicas), "--router", case.router]
        elif case.fleet is not None:
            fleet = Path(folder, "fleet.yaml")
            fleet.write_text(json.dumps(case.fleet))
            flags += ["--fleet", str(fleet)]
        arguments = ["simulate", case.model, "--gpu", case.gpu, "--trace", str(path), "--json", *flags]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-c", PROCESS, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        json.loads(done.stdout)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s, int(done.stderr.split()[-1]) / 1024


def bare_timeouts_s() -> float:
    """CPU seconds of SimPy for so many timeouts of one process."""

    def ticks() -> Generator[simpy.Event, Any, None]:
        for _ in range(NUM_TIMEOUTS):
            yield env.timeout(1)

    env = simpy.Environment()
    env.process(ticks())
    return timed(env.run)[0].cpu_s


def step_cost_us(num_running: int, counts: Sequence[int] = (2_000, 12_000)) -> float:
    """CPU us of one more step that computes a prompt beside so many decodes: two runs, set against each other.

    Steps without a prompt are leapt over, so that one more of them costs nothing that could be measured.
    """
    deployed = deploy(MODEL, GPU, limits(Case(burst, 6_000_000)))
    config, model = deployed.config, deployed.step_time
    engine = replace(config.engine, max_num_seqs=num_running + 1, max_num_batched_tokens=num_running + 1024)
    config = replace(config, engine=engine)

    def run(num_prompts: int) -> tuple[float, int]:
        timing, records = timed(
            lambda: simulate(beside_decodes(num_running, num_prompts), FleetPlan.alike(config, model)).merged
        )
        return timing.cpu_s, int((records.leaps.whole.num_chunk_tokens > 0).sum())

    costs = []
    for _ in range(5):
        (few_s, few), (many_s, many) = map(run, counts)
        costs.append((many_s - few_s) / (many - few))
    return statistics.median(costs) * 1e6


def beside_decodes(num_running: int, num_prompts: int) -> Trace:
    """So many requests that decode to the end, and others of one token that come into a last seat one after the other."""
    count = num_running + num_prompts
    return Trace(
        request_id=tuple(f"r{number}" for number in range(count)),
        arrival_s=np.zeros(count),
        prompt_tokens=np.full(count, 16),
        output_tokens=np.where(np.arange(count) < num_running, 60_000, 1),
    )


if __name__ == "__main__":
    main()
