"""Which batch sizes vLLM captures as CUDA graphs."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sim.specs.engine import CudagraphMode


@dataclass(frozen=True, slots=True)
class CaptureRules:
    """How one vLLM version lists its capture sizes.

    `cap_follows_max_num_seqs`: nothing above twice max_num_seqs is captured.
    `wide_spacing`: from 256 tokens on every 16th size instead of every 8th.
    `adds_max_num_batched_tokens`, `adds_max_num_seqs`: that size itself is captured where the cap allows.
    `blackwell_cap`: the cap on compute capability 10.x; 512 elsewhere.
    `gpt_oss_cap`: the cap that replaces all others for GptOss models, in wide spacing, where the user sets none.
    `cap_counts_drafts`, `rounds_to_drafts`, `adds_draft_grid` are for speculation, where each request of a decode has 1 + K
    tokens: the cap counts all of them, sizes are rounded up to whole requests, and whole requests are captured as well.
    """

    cap_follows_max_num_seqs: bool
    wide_spacing: bool
    adds_max_num_batched_tokens: bool
    adds_max_num_seqs: bool
    blackwell_cap: int
    gpt_oss_cap: int | None
    cap_counts_drafts: bool = False
    rounds_to_drafts: bool = False
    adds_draft_grid: bool = False


def default_sizes(
    rules: CaptureRules,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    compute_capability: str,
    architecture: str,
    interactivity: bool = False,
    query_len: int = 1,
) -> tuple[int, ...]:
    """The sizes captured where the user sets neither them nor a largest one; `query_len` is 1 + K."""
    cap = rules.blackwell_cap if compute_capability.startswith("10.") else 512
    if rules.cap_follows_max_num_seqs:
        cap = min(2 * max_num_seqs * (query_len if rules.cap_counts_drafts else 1), cap)
    if architecture == "GptOssForCausalLM" and rules.gpt_oss_cap is not None:
        cap, rules = rules.gpt_oss_cap, replace(rules, wide_spacing=True)
    return listed_sizes(
        rules,
        cap,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        interactivity=interactivity,
        query_len=query_len,
    )


def listed_sizes(
    rules: CaptureRules,
    cap: int,
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    interactivity: bool = False,
    query_len: int = 1,
) -> tuple[int, ...]:
    """The sizes captured up to `cap`, ascending; `interactivity` captures 1 to 32 one by one."""
    top = min(cap, max_num_batched_tokens)
    sizes = {*_grid(rules, top), *(range(1, 33) if interactivity else ())}
    if rules.adds_max_num_batched_tokens:
        sizes.add(max_num_batched_tokens)
    if rules.adds_max_num_seqs and max_num_seqs <= cap:
        sizes.add(max_num_seqs)
    if rules.adds_draft_grid and query_len > 1:
        sizes.update(query_len * size for size in _grid(rules, max_num_seqs))
    return tuple(sorted(size for size in sizes if size <= top))


def rounded_to_drafts(
    rules: CaptureRules, mode: CudagraphMode, sizes: tuple[int, ...], query_len: int
) -> tuple[int, ...]:
    """The sizes rounded up to whole requests of `query_len` tokens, up to the largest; as vLLM does where decodes have full graphs."""
    if query_len == 1 or not rules.rounds_to_drafts or not mode.startswith("FULL"):
        return sizes
    rounded = {-(-size // query_len) * query_len for size in sizes}
    return tuple(sorted(size for size in rounded if size <= sizes[-1])) or (query_len,)


def full_graph_sizes(
    mode: CudagraphMode, sizes: tuple[int, ...], *, max_num_seqs: int, query_len: int = 1
) -> tuple[int, ...]:
    """Those sizes that also (or only) exist as full graphs; uniform decode batches never exceed max_num_seqs of `query_len` tokens."""
    if mode == "FULL":
        return sizes
    most = query_len * max_num_seqs
    return tuple(size for size in sizes if mode.startswith("FULL_") and query_len <= size <= most)


def _grid(rules: CaptureRules, top: int) -> Iterable[int]:
    if not rules.wide_spacing:
        return (1, 2, 4, *range(8, top + 1, 8))
    return (1, 2, 4, *range(8, 256, 8), *range(256, top + 1, 16))
