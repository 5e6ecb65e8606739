"""What the last batch that came back changed, for whoever asks what an engine showed just before."""

import math

from sim.engine.metrics import Metrics


class LastCollect:
    """It came back at `at_s`; so many requests left the queue and the running ones with it, and gave so many blocks back."""

    def __init__(self) -> None:
        self.at_s = -math.inf
        self.num_left_waiting = 0
        self.num_left_running = 0
        self.num_released = 0

    def nobody_left(self, at_s: float) -> None:
        """One came back that changed nothing."""
        self.at_s = at_s
        self.num_left_waiting = self.num_left_running = self.num_released = 0

    def load_before(self, load: tuple[int, int], now_s: float) -> tuple[int, int]:
        """(waiting, running) just before a time, from those of now; a batch collected at that time or later still counts."""
        if self.at_s < now_s:
            return load
        waiting, running = load
        return waiting + self.num_left_waiting, running + self.num_left_running

    def metrics_before(self, load: tuple[int, int], num_free: int, num_usable_blocks: int, time_s: float) -> Metrics:
        """The metrics just before a time, from the load and the free blocks of now."""
        waiting, running = self.load_before(load, time_s)
        num_free -= self.num_released if self.at_s >= time_s else 0
        return waiting, running, 1.0 - num_free / num_usable_blocks
