"""Requests that ask for several answers, with each answer as a request of its own.

vLLM generates the `n` answers of a request as so many requests with the same prompt (v1/engine/parallel_sampling.py), which prefix
caching lets share it.
"""

from dataclasses import replace

import numpy as np

from sim.workload.trace import Trace

MOST_ANSWERS = 16_384  # vLLM's VLLM_MAX_N_SEQUENCES


def one_answer_each(trace: Trace) -> Trace:
    """Each request as many times in a row as it has answers, with the same prompt. A session goes on from the last of them."""
    assert trace.n is not None, "a trace that says how many answers there are"
    rows = np.repeat(np.arange(len(trace)), trace.n)
    whole = replace(trace, n=None, segments=own_prompts(trace) if not trace.says_contents else trace.segments)
    return whole.rows(rows)


def own_prompts(trace: Trace) -> tuple[tuple[tuple[int, int]], ...]:
    """Nothing is shared between requests."""
    return tuple(((row, tokens),) for row, tokens in enumerate(trace.prompt_tokens.tolist()))
