"""Links that transfers share: each transfer runs at its fair share of the narrowest port on its way.

Shares are max-min fair, as competing flows of one kind settle on: the port that leaves least for each of its transfers is
divided equally among them, then the next with what is left. Shares change whenever a transfer begins or ends.
"""

from collections.abc import Sequence
from math import inf

import simpy

from sim.cluster.arrivals import Process
from sim.cluster.clock import TRANSFER, At


class Port:
    """One direction of a link, of `bytes_per_s`; `moved_bytes` went through it in the `busy_s` in which it was used."""

    def __init__(self, name: str, bytes_per_s: float) -> None:
        self.name = name
        self.bytes_per_s = bytes_per_s
        self.moved_bytes = 0.0
        self.busy_s = 0.0
        self.num_transfers = 0

    def __repr__(self) -> str:
        return f"Port({self.name!r}, {self.bytes_per_s:g})"


class Transfer(simpy.Event):
    """Bytes on their way through some ports; the event happens when the last of them has arrived."""

    def __init__(self, env: simpy.Environment, path: Sequence[Port], num_bytes: float) -> None:
        super().__init__(env)
        self.path = path
        self.left_bytes = num_bytes
        self.bytes_per_s = 0.0
        self.since_s = env.now
        self.end_s = inf

    def run_at(self, bytes_per_s: float) -> None:
        """From now on it runs at that rate."""
        if bytes_per_s == self.bytes_per_s:
            return
        now_s = self.env.now
        self.left_bytes = max(0.0, self.left_bytes - self.bytes_per_s * (now_s - self.since_s))
        self.bytes_per_s, self.since_s = bytes_per_s, now_s
        self.end_s = now_s + self.left_bytes / bytes_per_s if bytes_per_s else inf


class Links:
    """All transfers under way, and the one event at which the next of them ends."""

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._transfers: list[Transfer] = []
        self._next_end: At | None = None
        self._shared_since_s = env.now

    def send(self, path: Sequence[Port], num_bytes: float) -> Transfer:
        """Send bytes through these ports, from now on."""
        transfer = Transfer(self._env, path, num_bytes)
        self._count_time()
        self._transfers.append(transfer)
        for port in path:
            port.num_transfers += 1
            port.moved_bytes += num_bytes
        self._share()
        return transfer

    def moved(self, path: Sequence[Port], num_bytes: float) -> Process:
        """A process: the same until all has arrived; if it is interrupted, what has not moved by then never does."""
        transfer = self.send(path, num_bytes)
        try:
            yield transfer
        except simpy.Interrupt:
            self._break_off(transfer)
            raise

    def _break_off(self, transfer: Transfer) -> None:
        if transfer not in self._transfers:
            return  # its last byte has arrived at this instant
        self._count_time()
        self._transfers.remove(transfer)
        transfer.run_at(0.0)
        for port in transfer.path:
            port.num_transfers -= 1
            port.moved_bytes -= transfer.left_bytes
        self._share()

    def _share(self) -> None:
        """Give each transfer its rate, and wait for the first that ends."""
        rates = fair_rates([transfer.path for transfer in self._transfers])
        for transfer, bytes_per_s in zip(self._transfers, rates, strict=True):
            transfer.run_at(bytes_per_s)
        self._next_end = None
        if self._transfers:
            first_end_s = min(transfer.end_s for transfer in self._transfers)
            self._next_end = At(self._env, first_end_s, TRANSFER)
            self._next_end.callbacks.append(self._end)

    def _end(self, event: simpy.Event) -> None:
        if event is not self._next_end:
            return  # shares have changed since
        self._count_time()
        ended = [transfer for transfer in self._transfers if transfer.end_s <= self._env.now]
        self._transfers = [transfer for transfer in self._transfers if transfer.end_s > self._env.now]
        for transfer in ended:
            for port in transfer.path:
                port.num_transfers -= 1
            transfer.succeed()
        self._share()

    def _count_time(self) -> None:
        """Ports that were in use since shares last changed were busy."""
        passed_s, self._shared_since_s = self._env.now - self._shared_since_s, self._env.now
        for port in {port: None for transfer in self._transfers for port in transfer.path}:
            port.busy_s += passed_s


def fair_rates(paths: Sequence[Sequence[Port]]) -> list[float]:
    """Bytes/s of each transfer, by the ports on its way."""
    rates = [0.0] * len(paths)
    through: dict[Port, list[int]] = {}
    for number, path in enumerate(paths):
        for port in path:
            through.setdefault(port, []).append(number)
    left = {port: port.bytes_per_s for port in through}
    while through:
        narrowest = min(through, key=lambda port: left[port] / len(through[port]))
        bytes_per_s = left[narrowest] / len(through[narrowest])
        for number in through.pop(narrowest):
            rates[number] = bytes_per_s
            for port in paths[number]:
                if port in through:
                    left[port] -= bytes_per_s
                    through[port].remove(number)
        through = {port: numbers for port, numbers in through.items() if numbers}
    return rates
