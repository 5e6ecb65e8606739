"""The sum of a column that is never there as a whole."""

from collections.abc import Callable

from sim.engine.columns import Floats

AT_ONCE = 1 << 16  # more than numpy adds up without halving


def pairwise_sum(part: Callable[[int, int], Floats], end: int, first: int = 0) -> float:
    """What numpy's `sum` of the whole column gives, to the bit; `part` has its values from one row to before another.

    Numpy halves a column, at multiples of eight, until 128 values or fewer are left
    (`pairwise_sum` in numpy/_core/src/umath/loops_utils.h.src).
    """
    count = end - first
    if count <= AT_ONCE:
        return float(part(first, end).sum())
    half = count // 2
    middle = first + half - half % 8
    return pairwise_sum(part, middle, first) + pairwise_sum(part, end, middle)
