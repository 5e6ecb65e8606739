"""`python -m tests.conformance CASE.json ... [--engine NAME]`: recorded schedules against an engine."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sim.errors import SimError
from tests.conformance.case import Case, load_case
from tests.conformance.compare import first_difference, request_difference
from tests.conformance.engines import ENGINES, Run


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a case, the first difference of each that fails; 1 if any fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("cases", nargs="+", type=Path, metavar="CASE.json")
    parser.add_argument("--engine", choices=sorted(ENGINES), default=min(ENGINES))
    asked = parser.parse_args(arguments)
    differences = []
    for path in asked.cases:
        try:
            case = load_case(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(
                f"{path} is no recorded schedule ({type(error).__name__}: {error}); name cases like tests/golden/*.gz."
            )
        if case is None:
            print(f"--   {path.name}: a table, no schedule")  # noqa: T201
            continue
        difference = difference_of(case, ENGINES[asked.engine])
        differences.append(difference)
        print(f"{'FAIL' if difference else 'ok  '} {case.name}{f': {difference}' if difference else ''}")  # noqa: T201
    failed = len(differences) - differences.count(None)
    print(f"{len(differences) - failed} passed, {failed} failed")  # noqa: T201
    return 1 if failed else 0


def difference_of(case: Case, engine: Callable[[Case], Run]) -> str | None:
    """Where an engine parts from the recording, or what kept it from a run; None where it does not."""
    try:
        run = engine(case)
    except SimError as error:
        return str(error)
    return first_difference(case, run.steps) or request_difference(case, run.requests)


if __name__ == "__main__":
    sys.exit(main())
