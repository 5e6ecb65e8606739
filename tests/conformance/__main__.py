"""`python -m tests.conformance CASE.json ... [--engine NAME]`: recorded schedules against an engine."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conformance.case import load_case
from tests.conformance.compare import first_difference, request_difference
from tests.conformance.engines import ENGINES


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line a case, the first difference of each that fails; 1 if any fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("cases", nargs="+", type=Path, metavar="CASE.json")
    parser.add_argument("--engine", choices=sorted(ENGINES), default=min(ENGINES))
    asked = parser.parse_args(arguments)
    failed = 0
    for path in asked.cases:
        try:
            case = load_case(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.error(
                f"{path} is no recorded schedule ({type(error).__name__}: {error}); name cases like tests/golden/*.gz."
            )
        run = ENGINES[asked.engine](case)
        difference = first_difference(case, run.steps) or request_difference(case, run.requests)
        failed += difference is not None
        print(f"{'FAIL' if difference else 'ok  '} {case.name}{f': {difference}' if difference else ''}")  # noqa: T201
    print(f"{len(asked.cases) - failed} passed, {failed} failed")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
