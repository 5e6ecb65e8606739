"""`python -m tests.conformance CASE.json ... [--engine NAME]`: recorded schedules against an engine."""

import argparse
import sys
from pathlib import Path

from tests.conformance.case import load_case
from tests.conformance.compare import first_difference, request_difference
from tests.conformance.engines import ENGINES


def main() -> int:
    """Print a line a case, the first difference of each that fails; 1 if any fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("cases", nargs="+", type=Path, metavar="CASE.json")
    parser.add_argument("--engine", choices=sorted(ENGINES), default=min(ENGINES))
    arguments = parser.parse_args()
    failed = 0
    for path in arguments.cases:
        case = load_case(path)
        run = ENGINES[arguments.engine](case)
        difference = first_difference(case, run.steps) or request_difference(case, run.requests)
        failed += difference is not None
        print(f"{'FAIL' if difference else 'ok  '} {case.name}{f': {difference}' if difference else ''}")  # noqa: T201
    print(f"{len(arguments.cases) - failed} passed, {failed} failed")  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
