"""What clients see beyond the engine, measured on both sides of a server: `python -m benchmarks.front_end ../shared/measured`.

vLLM 0.32.0 on two CPU cores, with every step of its engine logged by the clock of `vllm bench serve`. A request that finds the engine
idle is scheduled as soon as the front end has passed it on; its tokens are there when a step has been taken in, and with the client later.
Nothing is fitted to this: the front end is that of served runs of vLLM 0.15.1 on H100 and A100 (fit_serving.py).
"""

import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sim.cluster.front_end import FrontEnd
from sim.report.tables import aligned
from sim.specs.hardware import load_gpu
from sim.units import MS

HEADER = ("server", "load", "requests", "streams", "into the engine", "out of it", "both", "predicted")
LEFT_OUT = ("warm", "inf")  # a cold server; a client whose own core is busy with a hundred requests at once
IDLE_S = 0.002  # the engine has had nothing to do for so long
MARGIN_S = 0.01


class Step(NamedTuple):
    """A step of the engine: when it was scheduled, when its tokens were taken in, and (tokens, computed before) of each request."""

    scheduled_s: float
    ended_s: float
    batch: Sequence[tuple[int, int]]


class Pass(NamedTuple):
    """A request's part of a step."""

    step: Step
    computed: int


class Seen(NamedTuple):
    """Of a request: seconds until it was scheduled, None if it had to wait; from its first token to its client; who else ran."""

    into_s: float | None
    out_s: float
    num_streams: int
    prompt_tokens: int


def rows(folder: Path) -> Iterator[tuple[object, ...]]:
    """Medians in ms by run; on its way in a request is seen where the engine is idle, so of a server's runs together."""
    front_end = FrontEnd.of(load_gpu("h100-sxm").operators.host)
    runs = [run for run in json.loads((folder / "cpu/runs.json").read_text()) if run["label"] not in LEFT_OUT]
    logs = {name: list(_steps(folder / "cpu" / name)) for name in {run["steps_file"] for run in runs}}
    found = {(run["server"], run["label"]): list(_seen(folder / "cpu", run, logs[run["steps_file"]])) for run in runs}
    for (server, label), seen in found.items():
        into_s = _median([one.into_s for (of, _), some in found.items() if of == server for one in some if one.into_s])
        out_s = _median([one.out_s for one in seen])
        late_s = _median([float(front_end.late_s(one.prompt_tokens, one.num_streams)) for one in seen])
        streams = float(np.mean([one.num_streams for one in seen]))
        yield server, label, len(seen), streams, into_s / MS, out_s / MS, (into_s + out_s) / MS, late_s / MS


def _median(values: Sequence[float]) -> float:
    return float(np.median(values))


def _seen(folder: Path, run: dict[str, Any], log: Sequence[Step]) -> Iterator[Seen]:
    """Each request of the bench that one life in the engine's log fits."""
    bench = json.loads((folder / run["bench"]).read_text())
    steps = [step for step in log if _is_within(step, run)]
    ends_s = np.array([step.ended_s for step in steps])
    waiting = sorted(range(len(bench["start_times"])), key=lambda row: bench["start_times"][row])
    for life in sorted(_lives(steps), key=lambda life: life[0].step.scheduled_s):
        computed = {one.computed: one.step for one in life}
        row = next((row for row in waiting if _fits(bench, row, life, computed)), None)
        if row is None:
            continue
        waiting.remove(row)
        sent_s, first = bench["start_times"][row], computed[bench["input_lens"][row]]
        before_s = ends_s[np.searchsorted(ends_s, life[0].step.scheduled_s) - 1] if life[0].step != steps[0] else 0.0
        is_idle = before_s < sent_s - IDLE_S
        into_s = life[0].step.scheduled_s - sent_s if is_idle else None
        yield Seen(into_s, sent_s + bench["ttfts"][row] - first.ended_s, len(first.batch), bench["input_lens"][row])


def _steps(path: Path) -> Iterator[Step]:
    with gzip.open(path, "rt") as lines:
        next(lines)
        for line in lines:
            scheduled_s, _, _, ended_s, batch, *_ = json.loads(line)
            yield Step(scheduled_s, ended_s, batch)


def _is_within(step: Step, run: dict[str, Any]) -> bool:
    return bool(run["t_first_step"] - MARGIN_S <= step.scheduled_s <= run["t_last_step"] + MARGIN_S)


def _lives(steps: Sequence[Step]) -> list[list[Pass]]:
    """The passes of each request. The log names none, but keeps their order: who has gone on is the next with so many tokens computed."""
    lives: list[list[Pass]] = []
    running: list[list[Pass]] = []
    for step in steps:
        still = iter(running)
        running = []
        for tokens, before in step.batch:
            life = next(life for life in still if life[-1].computed == before) if before else []
            if not before:
                lives.append(life)
            life.append(Pass(step, before + tokens))
            running.append(life)
    return lives


def _fits(bench: dict[str, Any], row: int, life: Sequence[Pass], computed: dict[int, Step]) -> bool:
    prompt, outputs = bench["input_lens"][row], bench["output_lens"][row]
    is_sent = bench["start_times"][row] < life[0].step.scheduled_s
    return is_sent and prompt in computed and life[-1].computed == prompt + outputs - 1


def main(folder: Path) -> None:
    print(aligned(HEADER, [[_text(cell) for cell in row] for row in rows(folder)]))


def _text(cell: object) -> str:
    return f"{cell:.1f}" if isinstance(cell, float) else str(cell)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
