"""Steps of data-parallel ranks with pipeline stages in which all do nothing but decode or idle, many at once.

Every rank's loop goes on as sim/engine/staged_group.py has it, but nobody is looked at: what its scheduler would decide is counted
(sim/engine/walking/rotation.py), and one step after the other only its times are worked out, to the same bits.
"""

from math import inf

from sim.engine.rank_group import LockStepRules
from sim.engine.rank_records import RankRecords
from sim.engine.staged_loop import BACK, CALL, Loop
from sim.engine.staged_times import StagedDecoding, StagedTimes
from sim.engine.walking.calls_ahead import MOST_CALLS, CallsAhead, Turn

NO_TURNS: list[Turn] = []


class RankAhead:
    """A rank while its steps are worked out: it makes its next call at `call_s`, with `num_decodes` in it of which a context sum of `context_tokens` comes.

    `ahead` has its calls, None of one that idles; the next of them is of the slot at `place`. What it launches for a step, it does at `launched_s`.
    """

    __slots__ = (
        "ahead", "call_s", "context_tokens", "last_end_s", "launched_s", "loop", "nap_s", "num_decodes", "num_free", "num_taken", "place", "turn", "turns",
    )  # fmt: skip
    turn: Turn

    def __init__(self, loop: Loop, ahead: CallsAhead | None) -> None:
        core = loop.core
        self.loop = loop
        self.ahead = ahead
        self.turns = core.turns if ahead is not None else NO_TURNS
        self.place = core.next_place if ahead is not None else 0
        self.num_free = ahead.num_free if ahead is not None else 0
        self.call_s = self.launched_s = loop.at_s
        self.last_end_s = core.last_end_s
        self.nap_s = core.idle_sleep_s
        self.num_decodes = self.num_taken = 0
        self.context_tokens = 1.0

    def takes_turn(self) -> bool:
        """On to the slot of the next call; False if there are too few blocks for it."""
        if self.ahead is None:
            return True
        turn = self.turn = self.turns[self.place]
        self.num_decodes = turn.num_decodes
        self.context_tokens, self.num_taken = 1.0, 0
        if turn.num_decodes:
            self.context_tokens = turn.context_tokens
            self.num_taken = turn.boundaries[turn.round] * self.loop.core.num_kv_groups
        return self.num_taken <= self.num_free

    def launch(self) -> None:
        """A batch at once; a dummy when the oldest batch is back and the nap over, if there is work."""
        self.launched_s = self.call_s
        ahead = self.ahead
        if ahead is not None and self.num_decodes == 0:
            self.launched_s = max(self.call_s, ahead.oldest_end_s) + self.nap_s

    def run(self, stages_s: list[tuple[float, float]], answer_s: float) -> None:
        """The step runs on its stages; what the last one's worker answers to a dummy comes then. On to the next call."""
        ahead = self.ahead
        if ahead is None:
            self.call_s = answer_s
            return
        number = ahead.num_calls
        oldest_end_s = ahead.oldest_end_s
        end_s = max(self.call_s, self.last_end_s)
        if self.num_decodes:
            end_s = stages_s[-1][1]
            self._run_batch(ahead, stages_s)
            ahead.launch(stages_s[0][0], end_s)
        else:
            ahead.launch(end_s, end_s)
        ahead.num_calls = number + 1
        ahead.back_s = max(self.call_s, oldest_end_s)
        self.num_free -= self.num_taken
        self.place = self.place + 1 if self.place + 1 < len(self.turns) else 0
        self.call_s = ahead.back_s if self.num_decodes else answer_s

    def _run_batch(self, ahead: CallsAhead, stages_s: list[tuple[float, float]]) -> None:
        turn, number = self.turn, ahead.num_calls
        start_s, end_s = stages_s[0][0], stages_s[-1][1]
        if start_s != turn.slot.sampled_s or number < ahead.num_slots:
            ahead.note_start(number, start_s)
        if self.num_taken:
            ahead.rows.next_takes(self.num_taken)
        ahead.rows.add(end_s, 0.0)
        self.loop.core.ran(stages_s)
        turn.slot.sampled_s = self.last_end_s = end_s
        turn.context_tokens += turn.more_tokens
        turn.round = turn.round + 1 if turn.round + 1 < len(turn.boundaries) else 0


class StagedLeaps:
    """Works steps out for as long as all ranks' decodes rotate undisturbed. The last tokens of any rank were sampled at `tokens_s`."""

    def __init__(self, times: StagedTimes, rules: LockStepRules, records: RankRecords, *, is_async: bool) -> None:
        self._times = times
        self._rules = rules
        self._records = records
        self._is_async = is_async
        self.tokens_s = -inf

    def may_begin(self, loops: list[Loop], until_s: float) -> bool:
        """Whether all ranks are between two steps, or wait for no more than a batch that finishes nobody, and decode or idle."""
        for loop in loops:
            core = loop.core
            if loop.inbox or loop.at_s >= until_s or not core.only_decodes:
                return False
            if loop.next == BACK:
                if not loop.was_launched or core.may_finish_next:
                    return False
            elif loop.next != CALL:
                return False
        return True

    def do(self, loops: list[Loop], free_s: list[float], tokens_s: float, until_s: float) -> int:
        """The steps for which all ranks are called before that time; how many they are. Stages are free from `free_s` on."""
        most, all_idle = MOST_CALLS, True
        for loop in loops:
            if loop.next != CALL:
                return 0
            most = min(most, loop.core.num_certain_calls)
            all_idle = all_idle and loop.core.is_idle
        if most <= 0 or all_idle:
            return 0
        self.tokens_s = tokens_s
        ranks = [RankAhead(loop, loop.core.calls_ahead()) for loop in loops]
        num_steps = 0
        while num_steps < most and self._is_next(ranks, until_s):
            self._step(ranks, free_s)
            num_steps += 1
            self._look(ranks, loops[0].step + num_steps)
        if num_steps:
            for rank in ranks:
                rank.loop.at_s = rank.call_s
                rank.loop.step += num_steps
                if rank.ahead is not None:
                    rank.ahead.num_left, rank.ahead.next_s = rank.num_free, rank.call_s
                    rank.loop.core.do_calls(rank.ahead, rank.last_end_s)
        return num_steps

    def _is_next(self, ranks: list[RankAhead], until_s: float) -> bool:
        for rank in ranks:  # noqa: SIM110 - of a generator compiled code makes a list
            if rank.call_s >= until_s or not rank.takes_turn():
                return False
        return True

    def _step(self, ranks: list[RankAhead], free_s: list[float]) -> None:
        counts: list[int] = []
        met_s = -inf
        for rank in ranks:
            rank.launch()
            met_s = max(met_s, rank.launched_s)
            counts.append(rank.num_decodes)
        decoding = self._times.decoding(counts)
        self._records.count(counts, decoding.agreement)
        stages_s = self._stages_s(ranks, decoding, met_s, free_s)
        answers_s = max(met_s, self.tokens_s)
        for rank in ranks:
            if rank.num_decodes:
                self.tokens_s = stages_s[-1][1]
            rank.run(stages_s, max(met_s, rank.last_end_s) if self._is_async else answers_s)

    def _stages_s(
        self, ranks: list[RankAhead], decoding: StagedDecoding, met_s: float, free_s: list[float]
    ) -> list[tuple[float, float]]:
        """When each stage begins and ends the step."""
        ready_s, any_launched = met_s, False
        for rank in ranks:
            if rank.num_decodes:
                any_launched = True
                ready_s = max(ready_s, rank.turn.slot.sampled_s)
        found: list[tuple[float, float]] = []
        for stage, steps in enumerate(decoding.steps):
            seconds: list[float] = []
            duration_s = 0.0
            for number, rank in enumerate(ranks):
                rank_s = steps[number].seconds(rank.context_tokens)
                seconds.append(rank_s)
                duration_s = max(duration_s, rank_s)
            begun_s = max(ready_s, free_s[stage])
            ended_s = free_s[stage] = begun_s + duration_s
            self._records.last(seconds, duration_s)
            found.append((begun_s, ended_s))
            ready_s = max(met_s, ended_s + decoding.hops_s[stage]) if any_launched else met_s
        return found

    def _look(self, ranks: list[RankAhead], step: int) -> None:
        """All wait for each other at steps behind which they look, and go on, as some have requests."""
        rules = self._rules
        if step % rules.sync_interval and (step > 1 or not rules.looks_at_once):
            return
        now_s = -inf
        for rank in ranks:
            now_s = max(now_s, rank.call_s)
        for rank in ranks:
            rank.call_s = now_s
