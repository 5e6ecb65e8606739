"""Values of a workload's file, each checked where it stands: lengths, waits, rates, records of numbers."""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sim.errors import ConfigError, SimError, TraceError, listed, nearest
from sim.inputs import read_text
from sim.specs.slo import judged_by_request, parse_slos
from sim.units import MIB
from sim.workload.arrivals import parse_arrivals
from sim.workload.columns import show
from sim.workload.lengths import FORMS, Choice, Counts, Lengths, parse_lengths
from sim.workload.rate_curve import Diurnal, Piece, Pieces, RampUp, RequestRate, Spike, Stages
from sim.workload.waits import Waits, parse_waits

MOST_LENGTHS_BYTES = 64 * MIB
RATE_FORMS = "a number of requests/s, inf, a list of {rate, duration_s, to_rate}, {mean, peak, peak_at_s, period_s}, {stages, gap_s} or {ramp_up_strategy, ramp_up_start_rps, ramp_up_end_rps}"
T = TypeVar("T")


class Place(NamedTuple):
    """Where something stands in a file: names and numbers of what it is in."""

    file: str
    path: tuple[str, ...] = ()

    def under(self, key: object) -> "Place":
        return Place(self.file, (*self.path, str(key)))

    def fault(self, sentence: str) -> TraceError:
        where = f"`{'.'.join(self.path)}`: " if self.path else ""
        return TraceError(f"{self.file}: {where}{sentence}")

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Gives the place to what a value is refused for."""
        try:
            yield
        except TraceError:
            raise
        except SimError as error:
            raise self.fault(str(error)) from None


def check_keys(values: Mapping[Any, Any], known: Collection[str], place: Place) -> None:
    for key in values:
        if key not in known:
            raise place.fault(f"`{show(key)}` is not a known key.{nearest(str(key), known)}")


def read_number(value: Any, place: Place, _folder: Path | None = None) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise place.fault(f"must be a number, got {show(value)}.")
    return float(value)


def read_integer(value: Any, place: Place, _folder: Path | None = None) -> int:
    if type(value) is not int:
        raise place.fault(f"must be an integer, got {show(value)}.")
    return value


def read_flag(value: Any, place: Place, _folder: Path | None = None) -> bool:
    if not isinstance(value, bool):
        raise place.fault(f"must be true or false, got {show(value)}.")
    return value


def read_lengths(value: Any, place: Place, folder: Path) -> Lengths:
    """A written form, a list of lengths as they occur, a mapping of lengths or of ranges to weights, or `file:` and a list."""
    with place.blamed():
        if isinstance(value, str) and value.startswith("file:"):
            return _counted(_lengths_in(folder / value.removeprefix("file:"), place), place)
        if isinstance(value, list):
            return _counted(value, place)
        if isinstance(value, Mapping):
            kind = "histogram" if any("-" in str(key) for key in value) else "choice"
            return parse_lengths(f"{kind}:{','.join(_weighed(kind, key, value[key]) for key in value)}")
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ConfigError(
                f"must be {FORMS}, a list or a mapping of lengths to weights, or file:NAME; got {show(value)}."
            )
        return parse_lengths(str(value))


def _weighed(kind: str, length: Any, weight: Any) -> str:
    bounds = f"{length}-{length}" if kind == "histogram" and "-" not in str(length) else length
    return f"{bounds}={weight}"


def _lengths_in(path: Path, place: Place) -> list[int]:
    """Integers in a file, one a line."""
    words = read_text(path, TraceError, most_bytes=MOST_LENGTHS_BYTES).split()
    for line, word in enumerate(words, 1):
        if not (word.isascii() and word.isdigit()):
            raise place.fault(f"{path} must have an integer on each line, got {show(word)} as number {line}.")
    return list(map(int, words))


def _counted(lengths: list[Any], place: Place) -> Choice:
    """Each as often as it occurs."""
    counts: dict[int, int] = {}
    for number, length in enumerate(lengths):
        counts[read_integer(length, place.under(number))] = counts.get(length, 0) + 1
    if not counts:
        raise place.fault("must have a length at least, got none.")
    return Choice(tuple(sorted((length, float(times)) for length, times in counts.items())))


def read_counts(value: Any, place: Place, folder: Path) -> Counts:
    found = read_lengths(value, place, folder)
    if not isinstance(found, Counts):
        raise place.fault(f"must have a mean, as 4, geometric:4, uniform:1,7 and choice:1=0.5,8=0.5 do; got {found}.")
    return found


def read_waits(value: Any, place: Place, _folder: Path) -> Waits:
    with place.blamed():
        return parse_waits(str(value))


def read_rate(value: Any, place: Place, _folder: Path) -> RequestRate:
    if value == "inf":
        return float("inf")
    if isinstance(value, list):
        with place.blamed():
            return Pieces(read_records(Piece, value, place))
    if isinstance(value, Mapping):
        with place.blamed():
            if "stages" in value:
                check_keys(value, ("stages", "gap_s"), place)
                gap = {"gap_s": read_number(value["gap_s"], place.under("gap_s"))} if "gap_s" in value else {}
                return Stages(read_records(Piece, value["stages"], place.under("stages")), **gap)
            if "ramp_up_strategy" in value:
                return read_ramp_up(value, place)
            return read_record(Diurnal, value, place)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise place.fault(f"must be {RATE_FORMS}; got {show(value)}.")
    return float(value)


def read_ramp_up(value: Mapping[str, Any], place: Place) -> RampUp:
    """By the benchmark's names, all of which are needed."""
    names = [one.name for one in fields(RampUp)]
    check_keys(value, names, place)
    for name in names:
        if name not in value:
            raise place.fault(f"`{name}` is required but absent.")
    strategy, *rates = names
    numbers = (read_number(value[name], place.under(name)) for name in rates)
    with place.blamed():
        return RampUp(str(value[strategy]), *numbers)


def read_records(kind: type[T], values: Any, place: Place) -> tuple[T, ...]:
    if not isinstance(values, list) or not values:
        raise place.fault(f"must be a list with a mapping at least, got {show(values)}.")
    return tuple(read_record(kind, value, place.under(number)) for number, value in enumerate(values))


def read_record(kind: type[T], value: Any, place: Place) -> T:
    """A dataclass of numbers from a mapping."""
    known: tuple[Field[Any], ...] = fields(kind)  # type: ignore[arg-type]
    if not isinstance(value, Mapping):
        raise place.fault(f"must be a mapping of {listed([one.name for one in known], 'and')}, got {show(value)}.")
    check_keys(value, tuple(one.name for one in known), place)
    for one in known:
        if one.default is MISSING and one.name not in value:
            raise place.fault(f"`{one.name}` is required but absent.")
    numbers = {key: read_number(number, place.under(key)) for key, number in value.items()}
    with place.blamed():
        return kind(**numbers)


def read_spikes(value: Any, place: Place, _folder: Path) -> tuple[Spike, ...]:
    return read_records(Spike, value, place)


def read_arrivals(value: Any, place: Place, _folder: Path) -> Any:
    with place.blamed():
        return parse_arrivals(str(value))


def read_names(value: Any, place: Place, _folder: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise place.fault(f"must be a list of names, got {show(value)}.")
    return tuple(value)


def read_slos(value: Any, place: Place, _folder: Path) -> tuple[str, ...]:
    """One limit or a list of them, as `--slo` has them."""
    limits = [value] if isinstance(value, str) else value
    if not isinstance(limits, list) or not all(isinstance(limit, str) for limit in limits):
        raise place.fault(f"must be a limit such as ttft_p99=500ms, or a list of them, got {show(value)}.")
    with place.blamed():
        judged_by_request(parse_slos(limits))
    return tuple(limits)


def read_name(value: Any, place: Place, _folder: Path) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w.-]+", value):
        raise place.fault(f"must be a name of letters, digits, dots, dashes and underscores, got {show(value)}.")
    return value
