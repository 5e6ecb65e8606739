"""A circuit breaker for each replica, or none."""

from sim.cluster.circuit_breaker import Circuit, CircuitBreaker, CircuitBreakerOptions


class Circuits:
    """Breakers by number of the replica; without options none ever opens."""

    def __init__(self, options: CircuitBreakerOptions | None, num_replicas: int) -> None:
        self._breakers = [] if options is None else [CircuitBreaker(options) for _ in range(num_replicas)]

    def is_open(self, number: int, now_s: float) -> bool:
        return bool(self._breakers) and self._breakers[number].state(now_s) is Circuit.OPEN

    def succeeded(self, number: int, now_s: float) -> None:
        """A replica has answered a request."""
        if self._breakers:
            self._breakers[number].succeeded(now_s)

    def failed(self, number: int, now_s: float) -> bool:
        """A replica has lost a request; whether that opened its circuit."""
        if not self._breakers or self.is_open(number, now_s):
            return False
        self._breakers[number].failed(now_s)
        return self.is_open(number, now_s)
