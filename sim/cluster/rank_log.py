"""The log of ranks in lock step: the rows of each rank's engine with its names, wave and step of the wave, and a row for each dummy batch."""

from collections.abc import Callable, Mapping, Sequence

from sim.engine.step_log import LogRow


class RankLog:
    """Passes rows to `emit`: those of engines as their batches come back, those of dummies as they begin. `names` are those of each rank."""

    def __init__(self, emit: Callable[[LogRow], None], names: Sequence[Mapping[str, int]]) -> None:
        self._emit = emit
        self._names = names
        self._places: dict[float, tuple[int, int]] = {}  # (wave, step) of each step, by its end in seconds

    def of_rank(self, rank: int) -> Callable[[LogRow], None]:
        """What takes the rows of a rank's engine."""

        def take(row: LogRow) -> None:
            is_in_step = row["n"] or row["end"] > row["start"]  # else it computed nothing and was back at once
            names = dict(zip(("wave", "step"), self._places[row["end"]], strict=True)) if is_in_step else {}
            self._emit({**self._names[rank], **names, **row})

        return take

    def steps(
        self, place: tuple[int, int], ran: Sequence[bool], called_s: Sequence[float], start_s: float, end_s: float
    ) -> None:
        """A step of all ranks, some of which ran a batch, before it comes back; `place` is (wave, step)."""
        wave, step = self._places[end_s] = place
        for rank, has_run in enumerate(ran):
            if not has_run:
                self._emit(
                    {
                        **self._names[rank],
                        "wave": wave,
                        "step": step,
                        "t": called_s[rank],
                        "start": start_s,
                        "end": end_s,
                        "n": 0,
                    }
                )
