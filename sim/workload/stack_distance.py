"""How large a prefix cache must be to hold what prompts repeat: LRU stack distances, for caches of all sizes at once.

A cache of C blocks that drops what was used longest ago holds the top C of one stack (Mattson, Gecsei, Slutz and Traiger,
Evaluation techniques for storage hierarchies, 1970). Each request looks for its prompt's whole blocks but never its last token,
then lays all on top, the first uppermost, as vLLM frees a prompt's last blocks first. Blocks that all prompts use together lie
together in the stack, and are one access.
"""

from typing import NamedTuple

import numpy as np

from sim.workload.adapters import told_apart
from sim.workload.columns import Floats, Ints
from sim.workload.conversations import Path, first_tokens, repeated_tokens, session_numbers, with_answers
from sim.workload.parallel_sampling import one_answer_each
from sim.workload.prefix_tree import Walks, walks
from sim.workload.trace import Trace


class Reuses(NamedTuple):
    """Runs of blocks that were used before: how many blocks lie above the run's first, how many of it are looked for, and the
    seconds since their last use; beside them all prompt tokens, and the different blocks that there are.
    """

    above: Ints
    num_blocks: Ints
    gap_s: Floats
    block_size: int
    prompt_tokens: int
    distinct_blocks: int

    def hit_rate(self, cache_tokens: int) -> float:
        """The share of prompt tokens that a cache of this size finds."""
        found = np.clip(cache_tokens // self.block_size - self.above, 0, self.num_blocks)
        return int(found.sum()) * self.block_size / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def enough_tokens(self) -> int:
        """The smallest cache that finds all there is to find."""
        looked_for = self.num_blocks > 0
        return int((self.above + self.num_blocks)[looked_for].max(initial=0)) * self.block_size

    def gap_percentile_s(self, q: float) -> float | None:
        """Of the seconds between two uses of a block, over all blocks that are looked for and were there before."""
        order = np.argsort(self.gap_s)
        counts = np.cumsum(self.num_blocks[order])
        if not len(counts) or not counts[-1]:
            return None
        return float(self.gap_s[order][np.searchsorted(counts, q / 100 * counts[-1])])


class _Accesses(NamedTuple):
    """Runs of blocks in the order in which requests use them, a prompt's deepest first; `asked` of a run's blocks are looked for."""

    row: Ints
    run: Ints
    num_blocks: Ints
    asked: Ints


def reuses(trace: Trace, block_size: int = 16) -> Reuses:
    """What requests find, one after the other, each with all its answers' prompts. The trace must say what prompts share."""
    asked = told_apart(trace if trace.n is None else one_answer_each(trace))
    uses = _accesses(walks(_paths(asked)), (asked.prompt_tokens - 1) // block_size, block_size)
    before = _last_use(uses.run)
    again = np.flatnonzero(before >= 0)
    last = before[again]
    used = np.concatenate(([0], np.cumsum(uses.num_blocks)))
    first_of_request = np.searchsorted(uses.row, uses.row[again])
    repeated = _before_and_greater(np.argsort(np.argsort(last)), uses.num_blocks[again])
    above = used[first_of_request] - used[last + 1] - repeated
    return Reuses(
        above,
        uses.asked[again],
        asked.arrival_s[uses.row[again]] - asked.arrival_s[uses.row[last]],
        block_size,
        int(asked.prompt_tokens.sum()),
        int(uses.num_blocks[before < 0].sum()),
    )


def _paths(trace: Trace) -> list[Path]:
    """What each request leaves in the cache: its prompt, and of its answer what a later turn repeats."""
    answers = np.maximum(0, trace.output_tokens - 1)
    if trace.session_id is None:
        return list(trace.segments or ())
    sessions = session_numbers(trace.session_id)
    if trace.segments is not None:
        return with_answers(trace.segments, sessions, answers.tolist())
    paths: list[Path] = []
    latest: dict[int, Path] = {}
    repeated = repeated_tokens(sessions, trace.prompt_tokens, trace.output_tokens - 1).tolist()
    lengths = (trace.prompt_tokens + answers).tolist()
    for row, (session, known, length) in enumerate(zip(sessions.tolist(), repeated, lengths, strict=True)):
        latest[session] = (*first_tokens(latest.get(session, ()), known), (row, length - known))
        paths.append(latest[session])
    return paths


def _accesses(found: Walks, most: Ints, block_size: int) -> _Accesses:
    """A stem is cut into runs where any request ends on it; a request uses the runs up to its own end."""
    first_block, end_block = found.begin // block_size, found.end // block_size
    order = np.lexsort((-found.begin, found.row))
    order = order[(end_block > first_block)[order]]
    row, first_block, num_blocks = found.row[order], first_block[order], (end_block - first_block)[order]
    longest = int(num_blocks.max(initial=0)) + 1
    cuts, last_run = np.unique(found.stem[order] * longest + num_blocks, return_inverse=True)
    stem, cut = np.divmod(cuts, longest)
    first_run = np.searchsorted(stem, stem)
    run_begin = np.where(first_run == np.arange(len(stem)), 0, np.concatenate(([0], cut))[:-1])
    counts = last_run - first_run[last_run] + 1
    nth = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    run = np.repeat(last_run, counts) - nth
    row = np.repeat(row, counts)
    size = (cut - run_begin)[run]
    asked = np.clip(most[row] - np.repeat(first_block, counts) - run_begin[run], 0, size)
    return _Accesses(row, run, size, asked)


def _last_use(run: Ints) -> Ints:
    """Where each run was used before, -1 for the first time."""
    order = np.argsort(run, kind="stable")
    same = run[order][1:] == run[order][:-1]
    before = np.full(len(run), -1)
    before[order[1:][same]] = order[:-1][same]
    return before


def _before_and_greater(ranks: Ints, weights: Ints) -> Ints:
    """For each of a permutation, the weights of those before it that are greater: sorted by one bit after the other, from the
    highest, each adds those with a 1 before it to its 0, among all with which it shares the higher bits.
    """
    sums, at = np.zeros_like(weights), np.arange(len(ranks))
    for bit in reversed(range(len(ranks).bit_length())):
        here = ranks[at]
        is_one = here >> bit & 1
        group = here >> bit + 1 << bit + 1  # where those with the same higher bits begin
        ones = np.concatenate(([0], np.cumsum(is_one)))
        weight = np.concatenate(([0], np.cumsum(is_one * weights[at])))
        sums[at] += np.where(is_one, 0, weight[:-1] - weight[group])
        ones_before = ones[:-1] - ones[group]
        zeros_before = np.arange(len(at)) - group - ones_before
        place = group + np.where(is_one, (1 << bit) + ones_before, zeros_before)
        sorted_at = np.empty_like(at)
        sorted_at[place] = at
        at = sorted_at
    return sums
