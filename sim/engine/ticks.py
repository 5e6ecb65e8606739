"""Multiples of an interval, at which something happens again and again."""

from math import floor, inf


def last_multiple(now_s: float, interval_s: float) -> float:
    """The last multiple of an interval that is not after now."""
    number = floor(now_s / interval_s)
    at_s = number * interval_s
    return at_s if at_s <= now_s else (number - 1) * interval_s


class Ticks:
    """Multiples of an interval; `last_s` is the one that was told of last."""

    def __init__(self, interval_s: float, last_s: float = -inf) -> None:
        self._interval_s = interval_s
        self.last_s = last_s

    @property
    def next_s(self) -> float:
        """The one after that."""
        return (round(self.last_s / self._interval_s) + 1) * self._interval_s

    def passed(self, now_s: float) -> bool:
        """Whether there has been one since, by a time that is not before the last call's."""
        at_s = last_multiple(now_s, self._interval_s)
        is_new = at_s > self.last_s
        if is_new:
            self.last_s = at_s
        return is_new


def ticks(interval_s: float | None) -> Ticks | None:
    """Those of an interval, if there is one."""
    return None if interval_s is None else Ticks(interval_s)
