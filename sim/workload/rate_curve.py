"""Request rates that change over time: pieces with ramps, days, stages, and spikes on top of any of them.

A process of arrivals at one request a second is drawn first; a curve then says when so many requests are due.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple, Self, TypeAlias

import numpy as np

from sim.errors import ConfigError, check_choice
from sim.inputs import LARGEST
from sim.workload.columns import MAX_SECONDS, Floats

KNOTS = 288  # straight lines that a day's cosine is made of; they miss it by less than 0.01 % of the peak
MOST_LINES = 1_000_000
ROUNDING = 1e-12  # of a sum of pieces; the last request of all must not wait for the first piece to come again


@dataclass(frozen=True, slots=True)
class Piece:
    """So many requests a second for `duration_s`; with `to_rate` the rate changes to that one, in a straight line."""

    rate: float
    duration_s: float
    to_rate: float | None = None

    def __post_init__(self) -> None:
        _check_seconds("duration_s", self.duration_s)
        for name, rate in (("rate", self.rate), ("to_rate", self.end_rate)):
            if not 0 <= rate <= LARGEST:
                raise ConfigError(
                    f"`{name}` of a piece must be a finite number of requests/s of at least 0, got {rate}."
                )

    @property
    def end_rate(self) -> float:
        return self.rate if self.to_rate is None else self.to_rate

    def scaled(self, share: float) -> Self:
        return replace(self, rate=self.rate * share, to_rate=None if self.to_rate is None else self.to_rate * share)


@dataclass(frozen=True, slots=True)
class Pieces:
    """One after the other; where there are more requests than they have, they begin again."""

    pieces: tuple[Piece, ...]

    def __post_init__(self) -> None:
        if not any(piece.rate or piece.end_rate for piece in self.pieces):
            raise ConfigError("the pieces of a rate must have one with requests, got none above 0 requests/s.")

    @property
    def period_s(self) -> float:
        return sum(piece.duration_s for piece in self.pieces)

    def scaled(self, share: float) -> "Pieces":
        return Pieces(tuple(piece.scaled(share) for piece in self.pieces))


@dataclass(frozen=True, slots=True)
class Diurnal:
    """A day: a cosine about the mean, with its peak at `peak_at_s`."""

    mean: float
    peak: float
    peak_at_s: float = 0.0
    period_s: float = 86400.0

    def __post_init__(self) -> None:
        _check_seconds("period_s", self.period_s)
        if not (0 < self.mean <= self.peak <= 2 * self.mean <= LARGEST):
            raise ConfigError(
                f"a diurnal rate needs 0 < mean <= peak <= 2 x mean, got {self.mean} and {self.peak}; its night has as much less."
            )
        if not 0 <= self.peak_at_s <= MAX_SECONDS:
            raise ConfigError(f"`peak_at_s` must be from 0 to {MAX_SECONDS:.0e} s, got {self.peak_at_s}.")

    @property
    def pieces(self) -> tuple[Piece, ...]:
        times = np.linspace(0, self.period_s, KNOTS + 1)
        swing = np.cos(2 * np.pi * (times - self.peak_at_s) / self.period_s)
        rates = np.maximum(0.0, self.mean + (self.peak - self.mean) * swing).tolist()
        length_s = self.period_s / KNOTS
        return tuple(Piece(rate, length_s, to) for rate, to in pairwise(rates))

    def scaled(self, share: float) -> "Diurnal":
        return replace(self, mean=self.mean * share, peak=self.peak * share)


@dataclass(frozen=True, slots=True)
class Stages:
    """As inference-perf runs them: int(rate x duration_s) requests each; the next begins `gap_s` after one has ended."""

    stages: tuple[Piece, ...]
    gap_s: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.gap_s <= MAX_SECONDS:
            raise ConfigError(f"`gap_s` must be from 0 to {MAX_SECONDS:.0e} s, got {self.gap_s}.")
        if any(stage.to_rate is not None for stage in self.stages):
            raise ConfigError("a stage has one rate; leave out `to_rate`, or write pieces without `stages`.")
        if min(self.counts, default=0) < 1:
            raise ConfigError("each stage must have a request, rate x duration_s, at least.")

    @property
    def counts(self) -> list[int]:
        return [int(stage.rate * stage.duration_s) for stage in self.stages]

    @property
    def begins_s(self) -> list[float]:
        lasting = [0.0, *(stage.duration_s + self.gap_s for stage in self.stages[:-1])]
        return list(accumulate(lasting))

    def scaled(self, share: float) -> "Stages":
        return Stages(tuple(stage.scaled(share) for stage in self.stages), self.gap_s)


@dataclass(frozen=True, slots=True)
class RampUp:
    """As `vllm bench serve --ramp-up-strategy`: the rate goes up from request to request, by equal steps or by equal factors."""

    ramp_up_strategy: str
    ramp_up_start_rps: float
    ramp_up_end_rps: float

    def __post_init__(self) -> None:
        check_choice("`ramp_up_strategy`", self.ramp_up_strategy, ("linear", "exponential"))
        if not 0 < self.ramp_up_start_rps <= self.ramp_up_end_rps <= LARGEST:
            raise ConfigError(
                "a ramp-up needs 0 < ramp_up_start_rps <= ramp_up_end_rps, as the benchmark does, got "
                f"{self.ramp_up_start_rps} and {self.ramp_up_end_rps}."
            )

    def rates(self, num_requests: int) -> Floats:
        """That of each request (vLLM 0.11, vllm/benchmarks/serve.py, `_get_current_request_rate`)."""
        along = np.arange(num_requests) / max(num_requests - 1, 1)
        start, end = self.ramp_up_start_rps, self.ramp_up_end_rps
        if self.ramp_up_strategy == "linear":
            return np.asarray(start + (end - start) * along)
        return np.asarray(start * (end / start) ** along)

    def scaled(self, share: float) -> "RampUp":
        return replace(
            self, ramp_up_start_rps=self.ramp_up_start_rps * share, ramp_up_end_rps=self.ramp_up_end_rps * share
        )


@dataclass(frozen=True, slots=True)
class Spike:
    """`times` as many requests from `at_s` on, for `duration_s`."""

    at_s: float
    duration_s: float
    times: float

    def __post_init__(self) -> None:
        _check_seconds("duration_s", self.duration_s)
        if not (0 <= self.at_s <= MAX_SECONDS and 0 <= self.times <= 1e6):
            raise ConfigError(
                f"a spike needs `at_s` of at least 0 and `times` from 0 to a million, got {self.at_s} and {self.times}."
            )


Varying: TypeAlias = Pieces | Diurnal
ByRequest: TypeAlias = Stages | RampUp
RequestRate: TypeAlias = float | Varying | ByRequest


class _Lines(NamedTuple):
    """A rate as straight lines, one after the other from 0 s on."""

    begin_s: Floats
    end_s: Floats
    begin_rate: Floats
    end_rate: Floats

    @property
    def due(self) -> Floats:
        """Requests due at the end of each."""
        return np.cumsum((self.begin_rate + self.end_rate) / 2 * (self.end_s - self.begin_s))


def num_due(rate: float | Varying, spikes: Sequence[Spike], duration_s: float) -> float:
    """The requests of the first seconds, in the mean."""
    return float(_lines(rate, spikes, duration_s).due[-1])


def due_by_piece(rate: float | Varying, spikes: Sequence[Spike], due: float) -> Floats:
    """The requests that are due where pieces end, until so many are."""
    ends = _lines_until(rate, spikes, due * (1 - ROUNDING)).due
    return np.append(ends[ends < due * (1 - ROUNDING)], due)


def times_due(rate: float | Varying, spikes: Sequence[Spike], due: Floats) -> Floats:
    """When so many requests are due, in seconds; `due` ascends."""
    due = due * (1 - ROUNDING)
    lines = _lines_until(rate, spikes, float(due[-1]))
    ends = lines.due
    line = np.minimum(np.searchsorted(ends, due, side="left"), len(ends) - 1)
    within = np.maximum(0.0, due - np.where(line, ends[line - 1], 0.0))
    begin_rate = lines.begin_rate[line]
    slope = (lines.end_rate[line] - begin_rate) / (lines.end_s[line] - lines.begin_s[line])
    speed = begin_rate + np.sqrt(np.maximum(0.0, begin_rate**2 + 2 * slope * within))
    after_s = np.divide(2 * within, speed, out=np.zeros_like(within), where=speed > 0)
    times: Floats = np.minimum(lines.begin_s[line] + after_s, lines.end_s[line])
    return times


def _lines_until(rate: float | Varying, spikes: Sequence[Spike], due: float) -> _Lines:
    """The rate from 0 s on, until so many requests are due or longer."""
    until_s = max([spike.at_s + spike.duration_s for spike in spikes], default=0.0)
    until_s = max(until_s, 1.0 if isinstance(rate, float | int) else rate.period_s)
    while (lines := _lines(rate, spikes, until_s)).due[-1] < due:
        until_s *= 2
        if until_s > MAX_SECONDS:
            raise ConfigError(f"the rate has fewer than {due:,.0f} requests within {MAX_SECONDS:.0e} s; raise it.")
    return lines


def _lines(rate: float | Varying, spikes: Sequence[Spike], until_s: float) -> _Lines:
    """The rate from 0 to `until_s`, cut where a piece or a spike begins or ends."""
    pieces = (Piece(rate, until_s),) if isinstance(rate, float | int) else rate.pieces
    lasting = np.array([piece.duration_s for piece in pieces])
    num_cycles = math.ceil(until_s / lasting.sum())
    if num_cycles * len(pieces) > MOST_LINES:
        raise ConfigError(f"a rate of {lasting.sum():g} s is repeated {num_cycles:,} times; write longer pieces.")
    ends = np.cumsum(np.tile(lasting, num_cycles))
    marks = [0.0, until_s, *(mark for spike in spikes for mark in (spike.at_s, spike.at_s + spike.duration_s))]
    edges = np.unique(np.concatenate([ends, marks]))
    edges = edges[edges <= until_s]
    begin_s, end_s = edges[:-1], edges[1:]
    middle_s = (begin_s + end_s) / 2
    row = np.minimum(np.searchsorted(ends, middle_s), len(ends) - 1)
    piece = row % len(pieces)
    begun_s = ends[row] - lasting[piece]
    from_rate = np.array([piece.rate for piece in pieces])[piece]
    slope = (np.array([piece.end_rate for piece in pieces])[piece] - from_rate) / lasting[piece]
    factor = np.ones(len(middle_s))
    for spike in spikes:
        factor[(spike.at_s <= middle_s) & (middle_s < spike.at_s + spike.duration_s)] *= spike.times
    begin_rate = np.maximum(0.0, from_rate + slope * (begin_s - begun_s)) * factor
    return _Lines(begin_s, end_s, begin_rate, np.maximum(0.0, from_rate + slope * (end_s - begun_s)) * factor)


def _check_seconds(name: str, seconds: float) -> None:
    if not 0 < seconds <= MAX_SECONDS:
        raise ConfigError(f"`{name}` must be above 0 and at most {MAX_SECONDS:.0e} s, got {seconds}.")
