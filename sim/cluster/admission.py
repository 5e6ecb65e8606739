"""What a gateway lets in, how long requests may wait, and what becomes of those that a lost replica had."""

from dataclasses import dataclass

from sim.cluster.backoff import BackoffOptions
from sim.cluster.circuit_breaker import CircuitBreakerOptions
from sim.cluster.options import option

LOST = ("retry", "fail", "resume")
ORDERS = ("fcfs", "priority")


@dataclass(frozen=True)
class AdmissionOptions:
    """Limits; None is no limit.

    A request that arrives when `max_queued` wait at the gateway and at replicas is rejected. The gateway keeps at most
    `max_concurrent` requests at replicas; others wait there, in `order`, and are rejected after `queue_timeout_s`. A request
    that is not answered `timeout_s` after it came is aborted and fails.
    """

    max_queued: int | None = option(None, kind=int, at_least=0)
    max_concurrent: int | None = option(None, kind=int, at_least=1)
    queue_timeout_s: float | None = option(None, kind=float, at_least=0)
    timeout_s: float | None = option(None, kind=float, at_least=1e-3)
    order: str = option("fcfs", choices=ORDERS)


@dataclass(frozen=True)
class RecoveryOptions(BackoffOptions):
    """A lost replica's requests begin again elsewhere (`retry`), go on from the tokens they returned (`resume`) or `fail`.

    The gateway sends requests to a lost replica, which are lost at once, until it notices: `probe_failures` probes later, one
    each `probe_interval_s`, counted from 0 s; at once where that is 0. With `circuit_failures`, a replica that has lost so
    many requests within `circuit_window_s` gets none for `circuit_open_s`, then is shut out again by the next loss, unless
    `circuit_successes` were answered before.
    """

    lost: str = option("retry", choices=LOST)
    probe_interval_s: float = option(0.0, at_least=0)
    probe_failures: int = option(3, at_least=1)
    circuit_failures: int = option(0, at_least=0)
    circuit_window_s: float = option(120.0, at_least=1e-3)
    circuit_open_s: float = option(60.0, at_least=0)
    circuit_successes: int = option(3, at_least=1)

    @property
    def circuit(self) -> CircuitBreakerOptions | None:
        """Those of the circuit breaker of each replica, if there is one."""
        if not self.circuit_failures:
            return None
        return CircuitBreakerOptions(
            self.circuit_failures, self.circuit_window_s, self.circuit_open_s, self.circuit_successes
        )

    def noticed_s(self, lost_s: float) -> float:
        """When the gateway notices a loss."""
        interval_s = self.probe_interval_s
        return (lost_s // interval_s + self.probe_failures) * interval_s if interval_s else lost_s
