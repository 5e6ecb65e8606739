"""Scheduling rules that changed between vLLM versions, as switches."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulingRules:
    """What one vLLM version's scheduler does where versions differ; the defaults are those of 0.32.

    `lone_request_ignores_threshold`: a single request is not held to the long-prefill threshold (0.32+).
    `unhashed_blocks_first`: freed blocks without a hash go to the front of the free list (0.25.1+), else all to its end.
    `preempts_past_itself`: under priority, a running request that had to preempt itself does not end the scan (0.33+).
    `refunds_preempted_tokens`: a victim that was already scheduled in this step gives its tokens back (0.14.1+).
    """

    lone_request_ignores_threshold: bool = True
    unhashed_blocks_first: bool = True
    preempts_past_itself: bool = False
    refunds_preempted_tokens: bool = True
