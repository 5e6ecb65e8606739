"""Steps at equal distances of busy time, of a run that is seen once: the distance doubles as the run goes on."""

import numpy as np

from sim.engine.config import SchedulerConfig
from sim.engine.leap_records import LeapRecords
from sim.metrics.bottlenecks import NUM_SAMPLES, shapes_at
from sim.steptime.protocol import StepShape

FIRST_DISTANCE_S = 2.0**-20


class StepSamples:
    """From NUM_SAMPLES to twice as many, once a run is long enough: those that run when steps have run for whole distances."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._distance_s = FIRST_DISTANCE_S
        self._busy_s = 0.0
        self.shapes: list[StepShape] = []

    def add(self, leaps: LeapRecords) -> None:
        """Leaps that follow those before."""
        if not leaps.num_ran_steps:
            return
        end_s = self._busy_s + leaps.busy_s
        while end_s >= (2 * NUM_SAMPLES + 1) * self._distance_s:
            self._distance_s *= 2
            self.shapes = self.shapes[1::2]
        numbers = np.arange(len(self.shapes) + 1, int(end_s / self._distance_s) + 1)
        at_s = np.clip(numbers * self._distance_s - self._busy_s, 0.0, leaps.busy_s * (1 - 1e-12))
        if len(at_s):
            self.shapes += shapes_at(leaps, at_s, self._config)
        self._busy_s = end_s
