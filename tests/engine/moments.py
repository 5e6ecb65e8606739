"""A step log retold as what each scheduling pass found and did, worked out from the log alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sim.engine.config import SchedulerConfig
from tests.makers import Run
from tests.workloads import Workload


@dataclass(frozen=True, slots=True)
class Moment:
    """One pass: its log row, who was running and waiting as it began, and what it could know of them.

    `known` counts a request's prompt and the outputs scheduled for it so far, `computed` its KV positions.
    """

    step: dict[str, Any]
    running: list[str]
    queue: list[str]
    known: dict[str, int]
    computed: dict[str, int]

    @property
    def admitted(self) -> list[str]:
        """Who was let in, in order."""
        return [row[0] for row in self.step["sched"] if row[0] not in self.running]

    @property
    def computed_after(self) -> dict[str, int]:
        return self.computed | {row[0]: row[1] + row[2] for row in self.step["sched"]}

    def longest_chunk(self, config: SchedulerConfig) -> int:
        """The most tokens that one request may get in this pass."""
        threshold = config.engine.long_prefill_token_threshold
        num_requests = len(self.running) + len(self.queue)
        if num_requests == 1 and config.engine.rules.lone_request_ignores_threshold:
            return config.token_budget
        if threshold and config.engine.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, config.engine.max_num_batched_tokens // num_requests)
        return threshold or config.token_budget


def moments(workload: Workload, done: Run) -> Iterator[Moment]:
    """All passes of a run that did anything."""
    rows = {name: row for row, name in enumerate(workload.trace.request_id)}
    finish_s = done.records.requests.finish_s
    known = {name: int(tokens) for name, tokens in zip(rows, workload.trace.prompt_tokens, strict=True)}
    computed = dict.fromkeys(rows, 0)
    running: list[str] = []
    waiting: list[str] = []
    for step in done.steps:
        here = [name for name in running if finish_s[rows[name]] > step["t"]]
        queue = [name for name in waiting if finish_s[rows[name]] > step["t"]] + step["arrived"]
        moment = Moment(step, here, queue, known, computed)
        yield moment
        computed = moment.computed_after | dict.fromkeys(step["preempted"], 0)
        known = known | {name: known[name] + 1 for name in step["sampled"]}
        running, waiting = step["running"], step["waiting"]
