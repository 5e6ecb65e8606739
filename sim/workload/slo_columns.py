"""Classes with limits of their own, as columns: `slo_class` names a request's class, `slo` has its limits, `ttft_p99=300ms;tpot_p99=25ms`."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from sim.errors import ConfigError, TraceError
from sim.specs.slo import SloClass, exact, judged_by_request, parse_slos
from sim.workload.columns import Ints
from sim.workload.table import Sheet
from sim.workload.trace import Trace

BETWEEN = ";"


def written(trace: Trace) -> tuple[list[str], list[str]]:
    """Both columns of a trace that has classes."""
    assert trace.slo_class is not None, "a trace with classes"
    classes, rows = trace.slo_classes, trace.slo_class.tolist()
    limits = [limits_text(one) for one in classes]
    return [classes[number].name for number in rows], [limits[number] for number in rows]


def limits_text(one: SloClass) -> str:
    return BETWEEN.join(map(exact, one.slos))


class Classes:
    """Classes numbered as they come."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._found: list[SloClass] = []

    def number(self, one: SloClass, fault: Callable[[str], TraceError]) -> int:
        """That of a class. Raises the `fault` of one whose name another has, with other limits."""
        number = self._numbers.setdefault(one.name, len(self._found))
        if number == len(self._found):
            self._found.append(one)
        known = self._found[number]
        if known != one:
            limits = " after ".join(limits_text(of) or "none" for of in (one, known))
            raise fault(f"must be one for all requests of a class, got {limits} in {one.name!r}; name another class.")
        return number

    @property
    def all(self) -> tuple[SloClass, ...]:
        return tuple(self._found)


def numbered(
    sheet: Sheet, places: Ints, names: Sequence[str], limits: Sequence[str] | None
) -> tuple[Ints, tuple[SloClass, ...]]:
    """The class of each request, and the classes. Raises TraceError with the line of the first limits that are wrong."""
    classes, numbers = Classes(), dict[tuple[str, str], int]()

    def of_rows() -> Iterator[int]:
        for place, name, text in zip(places, names, [""] * len(names) if limits is None else limits, strict=True):
            if (name, text) not in numbers:
                numbers[name, text] = _number(classes, sheet, int(place), name, text)
            yield numbers[name, text]

    return np.fromiter(of_rows(), dtype=np.int64, count=len(names)), classes.all


def _number(classes: Classes, sheet: Sheet, place: int, name: str, text: str) -> int:
    said = sheet.said("slo")
    try:
        slos = judged_by_request(parse_slos(filter(None, text.split(BETWEEN))))
    except ConfigError as error:
        raise sheet.fault(place, str(error).replace("--slo", said, 1)) from None
    return classes.number(SloClass(name, slos), lambda rule: sheet.fault(place, f"{said} {rule}"))
