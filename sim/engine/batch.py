"""The batch that one scheduling pass puts together."""

from sim.engine.decodes import Decodes
from sim.engine.keyed_blocks import KeyedBlocks
from sim.engine.request import Request, admission_order
from sim.steptime.protocol import StepShape, shape_of


class Chunk:
    """Tokens of one request in a step, behind `num_computed_before`; `samples` says whether the step samples a token of it."""

    __slots__ = ("num_computed_before", "num_new_blocks", "num_tokens", "request", "samples")

    def __init__(
        self, request: Request, num_tokens: int, num_computed_before: int, num_new_blocks: int, samples: bool
    ) -> None:
        self.request = request
        self.num_tokens = num_tokens
        self.num_computed_before = num_computed_before
        self.num_new_blocks = num_new_blocks
        self.samples = samples


def _scheduling_order(chunk: Chunk) -> int:
    return admission_order(chunk.request)


class Batch:
    """Pass number `step`: filled while it schedules, then read by those who launch and record it.

    Decodes are a count, prompts a Chunk each. `budget` is what is left of the pass's tokens, `longest_chunk` the most that
    one request may get. `wasted` are chunks that run in older versions of vLLM without any result: of ghosts (requests
    that were preempted after they had been scheduled in this pass) and of requests whose last token was in flight.
    """

    __slots__ = (
        "admitted",
        "budget",
        "chunks",
        "longest_chunk",
        "num_decodes",
        "preempted",
        "shape",
        "starved",
        "step",
        "wasted",
    )

    def __init__(self, step: int, budget: int, longest_chunk: int) -> None:
        self.step = step
        self.budget = budget
        self.longest_chunk = longest_chunk
        self.num_decodes = 0
        self.chunks: list[Chunk] = []
        self.wasted: list[Chunk] = []
        self.preempted: list[Request] = []
        self.starved: list[Request] = []
        self.admitted: list[Request] = []
        self.shape: StepShape | None = None

    @property
    def did_nothing(self) -> bool:
        return not (self.num_decodes or self.chunks or self.wasted or self.preempted)

    @property
    def num_requests(self) -> int:
        """Requests with tokens in this step."""
        return self.num_decodes + len(self.chunks) + len(self.wasted)

    def close(self, decodes: Decodes) -> None:
        """Set `shape`, which tells the step-time model the work of the step of these decodes; None if there is none.

        As in vLLM's kernels, a chunk of one token counts as a decode.
        """
        num_decodes = num_sampled = num_tokens = self.num_decodes
        decode_context_tokens = 0
        chunks = []
        others: list[KeyedBlocks] = []
        rows = sorted(self.chunks + self.wasted, key=_scheduling_order) if self.wasted else self.chunks
        for chunk in rows:
            num_sampled += chunk.samples
            num_tokens += chunk.num_tokens
            if chunk.num_tokens > 1:
                chunks.append((chunk.num_tokens, chunk.num_computed_before))
            else:
                num_decodes += 1
                decode_context_tokens += chunk.num_computed_before + 1
                if chunk.request.keyed is not None:
                    others.append(chunk.request.keyed)
        if num_tokens:
            decode_context_tokens += decodes.context_sum_beside(others, num_decodes, self.step)
            self.shape = shape_of(num_decodes, decode_context_tokens, tuple(chunks), num_sampled)
