"""One pass of the scheduler: the builder that holds its budgets, and the batch that it makes."""

from sim.engine.request import Request
from sim.engine.walking.progress import Progress
from sim.steptime.protocol import StepShape


class Row:
    """Tokens of one request in a batch, the last `num_drafts` of them drafts, on top of those computed before.

    `samples`: a token comes of it; `is_continued` if it is known at launch to come `num_back` batches after the last one.
    `attempt` is that of the request when it was scheduled. `num_padded` drafts stand for
    nothing. Nothing comes of a ghost, whose request was preempted in the same pass by a vLLM that did not refund it.
    """

    __slots__ = (
        "attempt",
        "is_continued",
        "is_ghost",
        "num_computed_before",
        "num_drafts",
        "num_new_blocks",
        "num_padded",
        "num_tokens",
        "progress",
        "samples",
        "serial",
    )
    progress: Progress

    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_new_blocks = 0
        self.num_padded = 0
        self.num_computed_before = 0
        self.num_drafts = 0
        self.attempt = 0
        self.serial = 0
        self.samples = False
        self.is_continued = False
        self.is_ghost = False


class Batch:
    """What a pass decides, in scheduling order, and what it did on the way; then when it runs and what comes of it.

    `num_counted` decodes, whose last tokens were sampled at `sampled_s`, have no row; of these the last token of those that `ended`
    comes with it. `may_finish` is set where any request may finish with it, of an engine with a Rotation.
    Of those that do something it has a `number`, and `number_before` is that of the one before it in its slot.
    Of the tokens that it brings `num_continued` come `num_back` batches after the request's last, but for `num_dropped`; `late` has the
    numbers of the last batches of the others. `budget` are the tokens that one more request could get: each costs its own of the token budget and, of the input
    budget, `draft_slots` more. Of `num_verified` drafts that were no padding `num_accepted` were accepted. `accepted` and `delivered` are told where a log asks for them. Rows are made of
    `spare_rows`, those of batches that are back, which spares the collector of garbage a walk of its own.
    """

    def __init__(self, call: int, budget: int, input_budget: int, draft_slots: int, longest_chunk: int) -> None:
        self.call = call
        self._token_budget = budget
        self._input_budget = input_budget
        self._draft_slots = draft_slots
        self.budget = max(0, min(budget, input_budget - draft_slots))
        self.longest_chunk = longest_chunk
        self.rows: list[Row] = []
        self.spare_rows: list[Row] = []
        self.preempted: list[Request] = []
        self.admitted: list[Request] = []
        self.hits: dict[str, int] = {}
        self.external: dict[str, int] = {}
        self.has_unfinished_prefill = False
        self.admits_prefill = False
        self.is_throttled = False
        self.defers_prefills = False
        self.num_drafts_next = 0
        self.num_verified = 0
        self.num_accepted = 0
        self.shape: StepShape | None = None
        self.num_running = 0
        self.num_waiting = 0
        self.num_free_blocks = 0
        self.start_s = 0.0
        self.end_s = 0.0
        self.duration_s = 0.0
        self.stages_s: list[tuple[float, float]] = []
        self.num_continued = 0
        self.num_dropped = 0
        self.late: list[int] = []
        self.num_counted = 0
        self.num_back = 1
        self.number = -1
        self.number_before = -1
        self.ended: list[Progress] = []
        self.may_finish = False
        self.sampled_s = -1.0
        self.accepted: dict[str, int] | None = None
        self.delivered: dict[str, int] | None = None

    def decode_alone(self, call: int, num_decodes: int, start_s: float, end_s: float) -> None:
        """Be a batch of so many counted decodes and nothing else, as the one that it was and that is back."""
        self.call = call
        self.num_counted = self.num_continued = num_decodes
        self.start_s, self.end_s = start_s, end_s
        self.may_finish = False

    @property
    def is_empty(self) -> bool:
        """Whether it computes nothing."""
        return not self.rows and self.num_counted == 0

    @property
    def did_nothing(self) -> bool:
        return self.is_empty and not self.preempted

    @property
    def brings_first_token(self) -> bool:
        """Whether it is the first to sample for a request."""
        return any(row.samples and row.progress.last_batch < 0 for row in self.rows)

    @property
    def most_tokens(self) -> int:
        """That one more request could get; so that callers need the smallest of two, as of three mypyc asks Python itself."""
        return min(self.longest_chunk, self.budget)

    def count(self, num_decodes: int, sampled_s: float) -> None:
        """Decodes that have no row each; the tokens that they feed in have been sampled then."""
        self.num_counted = num_decodes
        self.sampled_s = sampled_s
        self._spend(num_decodes, num_decodes)

    def grant(self, progress: Progress, num_tokens: int, num_new_blocks: int, num_padded: int = 0) -> None:
        """One more row."""
        spare = self.spare_rows
        row = spare.pop() if spare else Row()
        row.progress = progress
        row.num_tokens = num_tokens
        row.num_new_blocks = num_new_blocks
        row.num_padded = num_padded
        row.num_drafts = 0
        row.attempt = progress.attempt
        row.serial = progress.request.serial
        row.samples = row.is_continued = row.is_ghost = False
        self.rows.append(row)
        progress.granted_call = self.call
        self._spend(num_tokens, num_tokens + self._draft_slots)

    def refund(self, progress: Progress) -> None:
        """Take back what was granted to a request."""
        row = self._row_of(progress)
        self.rows.remove(row)
        progress.granted_call = -1
        self._spend(-row.num_tokens, -row.num_tokens - self._draft_slots)

    def make_ghost(self, progress: Progress) -> None:
        """Let what was granted run on, though nothing comes of it."""
        row = self._row_of(progress)
        row.is_ghost = True
        row.num_computed_before = progress.num_computed

    def _row_of(self, progress: Progress) -> Row:
        return next(row for row in self.rows if row.progress is progress)

    def _spend(self, num_tokens: int, num_inputs: int) -> None:
        self._token_budget -= num_tokens
        self._input_budget -= num_inputs
        self.budget = max(0, min(self._token_budget, self._input_budget - self._draft_slots))
