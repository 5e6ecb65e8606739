"""The gateway of a fleet that changes: what it lets in, where it sends it, and how often it tries.

Every request that comes ends once: completed, rejected (turned away before any replica had it) or failed. One for several answers is one errand:
one replica has it, and it is completed with the last answer, or lost, aborted and tried again as a whole.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

import simpy
from simpy.events import EventPriority

from sim.cluster.admission import AdmissionOptions, RecoveryOptions
from sim.cluster.autoscaling.autoscaler import Observed
from sim.cluster.backoff import backoff_s
from sim.cluster.circuits import Circuits
from sim.cluster.clock import ASK, FLEET, RETRY, Answer, call_at
from sim.cluster.errand import Errand
from sim.cluster.places import Address, Place, Places, State
from sim.cluster.routers.router import Router
from sim.cluster.watch import Watch
from sim.engine.request import Request
from sim.engine.request_source import RequestSource
from sim.engine.request_table import RequestTable

NOTHING_RETURNED: Mapping[Request, int] = {}


class ManagedGateway:
    """Invariant: an errand for each open request, by row; those in `_queue` wait here, others are at a replica or between attempts.

    `kind` is what stands in places: a replica, or a server.
    """

    def __init__(  # noqa: PLR0913 - all that it connects
        self,
        env: simpy.Environment,
        router: Router,
        places: Places,
        source: RequestSource,
        table: RequestTable,
        *,
        admission: AdmissionOptions,
        recovery: RecoveryOptions,
        watches: Mapping[int, Watch],
        seed: int,
        kind: str = "replica",
    ) -> None:
        self._env = env
        self._router = router
        self._places = places
        self._source = source
        self._table = table
        self._admission = admission
        self._recovery = recovery
        self._watches = watches
        self._rng = Random(f"retries {seed}")  # noqa: S311 - a simulation's draws
        self._circuits = Circuits(recovery.circuit, places.num_addresses)
        self._kind = kind
        self._errands: dict[int, Errand] = {}
        self._queue: dict[Errand, None] = {}
        self._num_at_replicas = 0
        self._num_left = len(source) - len(source.rejected)
        self._is_due = False

    @property
    def is_done(self) -> bool:
        """Whether all requests of the trace have ended."""
        return self._num_left == 0

    def observed(self, pool: int) -> Observed:
        """What the autoscaler of a pool sees at this instant."""
        return self._watches[pool].observed(self._env.now, self._places, self._errands, self._queue)

    # -- in --------------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """A request arrives now."""
        self._enter(Errand(request, self._source.others(request), self._env.now, None))

    def ask(self, request: Request) -> Answer:
        """Submit a request, which arrives now; the event happens when it has ended."""
        answer = Answer(self._env)
        self._enter(Errand(request, self._source.others(request), self._env.now, answer))
        return answer

    def _enter(self, errand: Errand) -> None:
        self._errands[errand.row] = errand
        for watch in self._watches.values():
            watch.arrived(errand)
        most = self._admission.max_queued
        if most is not None and self._num_waiting >= most:
            self._turn_away(errand, f"{most} requests were waiting")
            return
        self._limit(errand)
        self._queue[errand] = None
        self.dispatch()

    @property
    def _num_waiting(self) -> int:
        """Requests that wait here and at replicas."""
        return len(self._queue) + sum(address.load[0] for address in self._places.candidates())

    def _limit(self, errand: Errand) -> None:
        """Have a request end when its time is up."""
        limits = self._admission
        for limit_s, act in ((limits.timeout_s, self._time_out), (limits.queue_timeout_s, self._queue_out)):
            if limit_s is not None:
                self._later(errand, limit_s, FLEET, act)

    def _later(self, errand: Errand, after_s: float, kind: EventPriority, act: Callable[[Errand], None]) -> None:
        """Do something with a request after some time, unless it has ended by then."""

        def due() -> None:
            if not errand.is_over:
                act(errand)

        call_at(self._env, self._env.now + after_s, kind, due)

    # -- to a replica ----------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Send waiting requests, as long as there are a replica for the next one and room for it."""
        most = self._admission.max_concurrent
        while self._queue and (most is None or self._num_at_replicas < most):
            errand = self._next()
            candidates = self._candidates(errand.attempt)
            if not candidates:
                return
            del self._queue[errand]
            self._send(errand, candidates)

    def dispatch_soon(self) -> None:
        """When all that comes back at this instant has come back."""
        if self._queue and not self._is_due:
            self._is_due = True
            call_at(self._env, self._env.now, ASK, self._dispatch_due)

    def _dispatch_due(self) -> None:
        self._is_due = False
        self.dispatch()

    def _next(self) -> Errand:
        if self._admission.order == "priority":
            return min(self._queue, key=lambda errand: errand.attempt.priority)
        return next(iter(self._queue))

    def _candidates(self, request: Request) -> list[Address]:
        """The addresses that seem ready, can serve it, and whose circuit is not open."""
        unable, now_s = self._source.unable.get(request.index, ()), self._env.now
        return [
            address
            for address in self._places.candidates()
            if address.pool not in unable and not self._circuits.is_open(address.number, now_s)
        ]

    def _send(self, errand: Errand, candidates: Sequence[Address]) -> None:
        request = errand.attempt
        for answer in errand.answers:
            answer.arrival_s = self._env.now
        number = self._router.choose(request, candidates).number
        place = errand.place = self._places.at(number)
        if errand.num_lost or self._source.other_keys:
            for answer in errand.answers:
                self._source.fit(answer, place.pool)
        assert place.tenant is not None, "it was a candidate"
        address = errand.address = place.tenant.at_addresses[place.addresses.index(number)]
        place.in_flight[request] = None
        self._num_at_replicas += 1
        if place.state is State.READY:
            self._submit(errand, address)
        else:  # lost, and not noticed yet
            self.lost(place, [request])

    def _submit(self, errand: Errand, address: Address) -> None:
        """The attempt goes to the address that was chosen for it."""
        address.submit(*errand.answers)

    # -- and back --------------------------------------------------------------------------------------------------

    def answered(self, number: int, finished: Sequence[Request]) -> None:
        """Answers have ended at the address of that number."""
        place = self._places.at(number)
        for request in finished:
            errand = self._errands.get(self._source.row(request))
            if errand is None:  # it had timed out at the instant of its last token
                continue
            del errand.open[request]
            if errand.open:
                continue
            self._leave(errand)
            self._circuits.succeeded(number, self._env.now)
            for watch in self._watches.values():
                watch.answered(errand, place.number, self._env.now)
            self._end(errand)
            self.dispatch_soon()
        self._places.give_back_if_drained(place)

    def refused(self, number: int, request: Request, reason: str) -> None:
        """The address of that number turns a request away that it was sent."""
        errand = self._errands[request.index]
        self._leave(errand)
        self._turn_away(errand, reason)
        self._places.give_back_if_drained(self._places.at(number))
        self.dispatch_soon()

    def _router_of(self, place: Place) -> Router:  # noqa: ARG002 - one for all
        """Who chooses among the replicas of which that is one."""
        return self._router

    def ready(self, place: Place) -> None:
        """A replica is ready, which may be new."""
        if len(place.ready_s) == 1:
            for number in place.addresses:
                self._router_of(place).joined(number)
        self.dispatch_soon()

    def gone(self, place: Place) -> None:
        """A replica's GPUs have been given back."""
        for number in place.addresses:
            self._router_of(place).left(number)

    def lost(self, place: Place, lost: Iterable[Request], returned: Mapping[Request, int] = NOTHING_RETURNED) -> None:
        """A replica is lost with these requests, of whose answers tokens had been returned."""
        for request in lost:
            errand = self._errands[request.index]
            address = self._leave(errand)
            self._count_loss(address.number)
            self._lose(errand, self._loss_of(place), returned)
        self.dispatch_soon()

    def _loss_of(self, place: Place) -> str:
        """Why an attempt has come to nothing."""
        return f"{self._kind} {place.number} was lost"

    def _count_loss(self, number: int) -> None:
        """One more request that was lost at the address of that number."""
        if self._circuits.failed(number, self._env.now):
            call_at(self._env, self._env.now + self._recovery.circuit_open_s, FLEET, self.dispatch_soon)

    def _lose(self, errand: Errand, reason: str, returned: Mapping[Request, int] = NOTHING_RETURNED) -> None:
        """An attempt has come to nothing: the next, or the end."""
        errand.num_lost += 1
        if self._recovery.lost == "fail" or errand.num_lost > self._recovery.retries:
            retries = f" after {errand.num_lost - 1} retries" if errand.num_lost > 1 else ""
            self._fail(errand, f"{reason}{retries}", returned)
            self._end(errand)
        else:
            self._try_again(errand, returned.get(errand.attempt, 0))

    def _try_again(self, errand: Errand, num_returned: int) -> None:
        """A fresh attempt, after a while; one that resumes has the tokens that were returned as a part of its prompt.

        Several answers have one prompt, of which none can be a part: they begin again.
        """
        resumes = self._recovery.lost == "resume" and len(errand.answers) == 1
        num_kept = num_returned if resumes else 0
        errand.keep(num_kept)
        attempt = self._source.again(errand.attempt, num_kept)
        errand.begin(attempt, self._source.others(attempt))
        wait_s = backoff_s(errand.num_lost - 1, self._recovery, self._rng)
        self._later(errand, wait_s, RETRY, self._queue_again)

    def _queue_again(self, errand: Errand) -> None:
        self._queue[errand] = None
        self.dispatch()

    def _leave(self, errand: Errand) -> Address:
        """A request is no longer at its replica; where it was sent."""
        place, address = errand.place, errand.address
        assert place is not None, "it was sent to a replica"
        assert address is not None, "it was sent to a replica"
        del place.in_flight[errand.attempt]
        errand.place = None
        errand.replica = address.replica_of(errand.attempt)
        self._num_at_replicas -= 1
        if self._router.listens:
            self._router.answered(errand.attempt, address.number)
        return address

    # -- the end ---------------------------------------------------------------------------------------------------

    def _end(self, errand: Errand) -> None:
        errand.is_over = True
        del self._errands[errand.row]
        self._num_left -= 1
        if errand.earlier is not None:
            self._table.precede(errand.row, errand.earlier)
        if errand.answer is not None:
            errand.answer.give()

    def _fail(self, errand: Errand, reason: str, returned: Mapping[Request, int] = NOTHING_RETURNED) -> None:
        """Record it, of all answers that have not come."""
        for answer in errand.open:
            self._table.fail(answer, returned.get(answer, 0), reason, errand.replica)

    def _turn_away(self, errand: Errand, reason: str) -> None:
        """It is at no replica: rejected if none ever had it, else failed."""
        self._queue.pop(errand, None)
        if errand.num_lost:
            self._fail(errand, reason)
        else:
            self._table.reject(errand.attempt, reason)
        self._end(errand)

    def _time_out(self, errand: Errand) -> None:
        reason, place = f"not answered within {self._admission.timeout_s:g} s", errand.place
        if place is None:
            self._queue.pop(errand, None)
            self._fail(errand, reason)
        else:
            self._abort(errand, self._leave(errand), reason)
            self._places.give_back_if_drained(place)
        self._end(errand)
        self.dispatch_soon()

    def _abort(self, errand: Errand, address: Address, reason: str) -> None:
        """Whoever has the attempt there is to drop it, and record that."""
        address.abort(*errand.open, reason=reason)

    def _queue_out(self, errand: Errand) -> None:
        if errand in self._queue and not errand.num_lost:
            self._turn_away(errand, f"waited {self._admission.queue_timeout_s:g} s at the gateway")

    def give_up(self, reason: str) -> None:
        """Turn away all that wait for a replica, where there is none that could serve them."""
        for errand in [errand for errand in self._queue if not self._candidates(errand.attempt)]:
            self._turn_away(errand, reason)
