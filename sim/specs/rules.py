"""Scheduling rules that changed between vLLM versions, as switches."""

from dataclasses import dataclass
from typing import Literal

ScanStep = Literal["always", "scheduled", "never"]


@dataclass(frozen=True, slots=True)
class SchedulingRules:
    """What one vLLM version's scheduler does where versions differ; the defaults are those of 0.32.

    `lone_request_ignores_threshold`: a single request is not held to the long-prefill threshold.
    `unhashed_blocks_first`: freed blocks without a hash go to the front of the free list, else all to its end.
    `preempts_past_itself`: under priority, a running request that had to preempt itself does not end the scan.
    `steps_back`: whether the scan moves up by one after a victim that lies before its position: "always", only if the
    victim had been "scheduled" in this pass, or "never". Where it does not, the next running request is passed over.
    `refunds_preempted_tokens`: a victim that was already scheduled in this pass leaves the batch. Before, it stays as
    a ghost that spends budget and time, yields nothing, and comes back without a prefix lookup, with its tokens of this
    pass counted as computed.
    `asserts_batch_within_running`: the engine dies when a batch, ghosts included, is larger than the running list.
    `stops_at_last_token`: under async scheduling a request whose last token is in flight is not scheduled once more.
    `skips_unchunked_prompts`: without chunked prefill a prompt above the budget left does not stop admission; those
    skipped come back to the front of the queue in reversed order.
    `paces_decodes`: under async scheduling with pipeline stages a request decodes in every so-many-th pass as there are stages,
    and one batch more than stages is in flight (model runner V2). Before, each pass takes it, for as many batches as stages.
    `orders_ties_by_id`: requests of equal priority and arrival can be queued together under priority; before, comparing
    them kills the engine.
    `counts_loras_of_all_running`: adapters of running requests that get nothing in this pass count as in use as well.
    `keeps_verified_blocks`: with drafts, blocks can be found from when the tokens in them are verified; before, without async scheduling,
    from when their request is scheduled next.
    `passes_over_short_chunks`: a waiting request of which this pass could only compute what must be left together for several MTP modules
    does not stop admission.
    `holders_go_first`: waiting requests that hold blocks for a load stand in a line of their own, which goes first. Before 0.31 all that were passed over
    stand in it, with blocks or without, and under priority its head goes by its own.
    `ranks_chunks_by_request`: in the CPU tier all that a request that has not ended has stored or found is as recent as its first use
    of a chunk, and of it the prompt's tail makes room first; before, each chunk as its store, in order.
    `touches_chunks_at_once`: before 0.31 each look for a request in the CPU tier, and each store of one, makes what is there of it the most recent, and what
    has just come or been loaded is so by itself; since then a request counts once.
    `offers_chunks_anew`: a preempted request offers its chunks to the CPU tier again; before, those it had not offered yet.
    `tells_all_connectors_of_allocations`: of two connectors, the one that does not load hears of a load's blocks as these are taken; before,
    as their request is scheduled.
    `keeps_block_before_junction`: where drafters have the last block of a hit computed again, windows keep what they need one block before
    the place at which prompts part too.
    `knows_layers_of_drafters`: the methods of speculation for which vLLM knows which KV groups hold the drafter's layers; it has the last block of a hit
    computed again in these, in all groups where it does not know, and in the CPU tier leaves the last chunk of what they have out while a request decodes.
    `forgets_trimmed_tokens`: drafts that are accepted behind a request's last token do not count as computed, where windows give blocks back before a connector
    hears of the end.
    `stops_before_last_token`: where layers keep states, the last chunk of a prompt of whole blocks is its last block; before, it had none of its own.
    `frees_states_behind_gaps`: states are given back also where the request has no blocks between them and the next; before, the last two alone,
    so that under async scheduling those of a prompt's chunks stay until its request ends.
    `marks_last_state_again`: of 0.32 alone: others find the last state of a prompt only once its request holds it no more, not from the next pass on.
    """

    lone_request_ignores_threshold: bool = True
    unhashed_blocks_first: bool = True
    preempts_past_itself: bool = False
    steps_back: ScanStep = "always"
    refunds_preempted_tokens: bool = True
    asserts_batch_within_running: bool = False
    stops_at_last_token: bool = True
    skips_unchunked_prompts: bool = False
    paces_decodes: bool = True
    orders_ties_by_id: bool = True
    counts_loras_of_all_running: bool = False
    keeps_verified_blocks: bool = False
    passes_over_short_chunks: bool = False
    holders_go_first: bool = True
    ranks_chunks_by_request: bool = False
    touches_chunks_at_once: bool = False
    offers_chunks_anew: bool = False
    tells_all_connectors_of_allocations: bool = False
    keeps_block_before_junction: bool = False
    knows_layers_of_drafters: tuple[str, ...] = ("mtp",)
    forgets_trimmed_tokens: bool = False
    stops_before_last_token: bool = True
    frees_states_behind_gaps: bool = True
    marks_last_state_again: bool = False
