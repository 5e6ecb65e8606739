"""The end times of consecutive steps that run the same decodes."""

import numpy as np

from sim.steptime.protocol import StepTimeModel

FEW_STEPS = 32
"""Up to here a loop over steps is faster than numpy's fixed cost; measured on CPython 3.11."""


def decode_step_ends(
    step_time: StepTimeModel, num_decodes: int, context_tokens: int, max_steps: int, start_s: float, until_s: float
) -> list[float]:
    """Ends of at most `max_steps` steps from `start_s` on, the last the first that ends at or after `until_s`.

    `context_tokens` is the sum of contexts after the first step; every step adds one token a decode.
    """
    curve = step_time.decode_curve(num_decodes)
    at = curve.at
    ends = []
    end_s = start_s
    for _ in range(min(max_steps, FEW_STEPS)):
        end_s += at(context_tokens)
        ends.append(end_s)
        if end_s >= until_s:
            return ends
        context_tokens += num_decodes
    missing = max_steps - len(ends)
    while missing > 0:
        count = min(missing, 2 * len(ends))
        contexts = context_tokens + num_decodes * np.arange(count, dtype=np.float64)
        more = np.cumsum(np.concatenate(([end_s], curve.over(contexts))))[1:]
        kept = int(np.searchsorted(more, until_s)) + 1
        ends.extend(more[:kept].tolist())
        if kept <= count:
            break
        end_s, missing, context_tokens = ends[-1], missing - count, context_tokens + num_decodes * count
    return ends
