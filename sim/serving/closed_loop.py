"""A closed loop: so many clients, each of which sends its next request when it has received the last."""

from collections.abc import Iterable, Sequence

import simpy

from sim.serving.arrivals import Due
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

    def __init__(self, env: simpy.Environment, replica: Replica, requests: Iterable[Request], delay_s: float) -> None:
        self._env = env
        self._replica = replica
        self._unsent = iter(requests)
        self._delay_s = delay_s

    def send(self, when_s: float) -> None:
        """The next request, if there is one, at that time."""
        request = next(self._unsent, None)
        if request is None:
            return
        request.arrival_s = when_s
        due = Due(self._env, when_s - self._env.now)
        due.callbacks.append(lambda _: self._replica.submit(request))

    def received(self, finished: Sequence[Request], now_s: float) -> None:
        """These requests have ended: as many clients are free."""
        for _ in finished:
            self.send(now_s + self._delay_s)


def simulate_closed_loop(
    trace: Trace, config: SchedulerConfig, step_time: StepTimeModel, *, concurrency: int, delay_s: float = 0.0
) -> Records:
    """Serve a trace's requests to `concurrency` clients; its arrival times are not looked at, records have the real ones."""

    def attempt(expects_preemption: bool) -> Records:
        env = simpy.Environment()
        incoming = Incoming(trace, config)
        recorder = Recorder(incoming)
        replica = Replica(
            env, config, step_time, recorder, num_keys=incoming.num_keys, expects_preemption=expects_preemption
        )
        clients = Clients(env, replica, incoming, delay_s)
        replica.on_finished = clients.received
        env.process(replica.run())
        for _ in range(concurrency):
            clients.send(0.0)
        env.run()
        return recorder.records(replica.scheduler)

    return without_preemption_if_possible(attempt)
