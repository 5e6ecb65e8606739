"""Who may hold anything of a prompt: none but replicas that were sent one with the same first tokens."""

from collections.abc import Iterator, Sequence

from sim.cluster.replica import Replica
from sim.cluster.routers.prompts import PromptTree
from sim.cluster.routers.router import numbered


class SentBefore:
    """The replicas that were sent a prompt, by the first node of its path in the prompts' tree. Nobody else sends them any."""

    def __init__(self, prompts: PromptTree) -> None:
        self._is_shared = prompts.is_shared
        self._replicas: dict[int, dict[int, None]] = {}

    def among(self, path: Sequence[int], replicas: Sequence[Replica]) -> Iterator[Replica]:
        """The candidates that may hold something of a prompt."""
        for number in self._replicas.get(path[0], ()):
            candidate = numbered(number, replicas)
            if candidate is not None:
                yield candidate

    def add(self, path: Sequence[int], replica: int) -> None:
        """A prompt has been sent to a replica."""
        if self._is_shared[path[0]]:
            self._replicas.setdefault(path[0], {})[replica] = None

    def forget(self, replica: int) -> None:
        """A replica is gone with all that it was sent."""
        for numbers in self._replicas.values():
            numbers.pop(replica, None)
