"""A closed loop: so many clients, each of which sends its next request when it has received the last."""

import math
from collections import deque
from collections.abc import Iterable, Sequence

from sim.serving.config import SchedulerConfig
from sim.serving.front_door import Incoming
from sim.serving.recorder import Recorder
from sim.serving.records import Records
from sim.serving.replica import Replica, without_preemption_if_possible
from sim.serving.request import Request
from sim.steptime.protocol import StepTimeModel
from sim.workload.trace import Trace


class Clients:
    """Send requests in order of the trace; `delay_s` passes between a client's last token and its next request's arrival."""

    def __init__(self, replica: Replica, requests: Iterable[Request], delay_s: float) -> None:
        self._replica = replica
        self._unsent = iter(requests)
        self._delay_s = delay_s
        self._on_their_way: deque[Request] = deque()
        replica.on_finished = self.received

    def received(self, finished: Sequence[Request], now_s: float) -> None:
        """These requests have ended: as many clients are free."""
        for _ in finished:
            self.send(now_s + self._delay_s)

    def send(self, when_s: float) -> None:
        """The next request, if there is one, to arrive at that time, which never lies before the last one's."""
        request = next(self._unsent, None)
        if request is not None:
            request.arrival_s = when_s
            self._on_their_way.append(request)

    def serve(self) -> None:
        """Let everything arrive and end."""
        replica, coming = self._replica, self._on_their_way
        while True:
            arrival_s = coming[0].arrival_s if coming else math.inf
            if replica.advance(arrival_s) and replica.now_s < arrival_s:
                continue  # an answer may have brought the next request
            if not coming:
                return
            replica.submit(coming.popleft())


def simulate_closed_loop(
    trace: Trace, config: SchedulerConfig, step_time: StepTimeModel, *, concurrency: int, delay_s: float = 0.0
) -> Records:
    """Serve a trace's requests to `concurrency` clients; its arrival times are not looked at, records have the real ones."""

    def attempt(expects_preemption: bool) -> Records:
        incoming = Incoming(trace, config)
        recorder = Recorder(incoming)
        replica = Replica(
            config, step_time, recorder,
            start_s=0.0, num_keys=incoming.num_keys, expects_preemption=expects_preemption,
        )  # fmt: skip
        clients = Clients(replica, incoming, delay_s)
        for _ in range(concurrency):
            clients.send(0.0)
        clients.serve()
        return recorder.records(replica.scheduler)

    return without_preemption_if_possible(attempt)
