"""KV cache as vLLM allocates it: layers in groups, one page size, one pool of blocks.

Mirrors vLLM 0.32's KV cache configuration, checked on 113 recorded ones, and on 120 of models with windows on pipeline stages. Deliberate difference: layers of one kind
whose pages differ in size are not merged into one group, as no known model has them.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import NamedTuple, TypeVar

from sim.errors import ConfigError
from sim.specs.engine import ResolvedEngine
from sim.specs.model import Attention, AttentionKind, ModelSpec, ceil_div
from sim.specs.releases import parse_version
from sim.specs.stages import Stage

_From = TypeVar("_From", bound=Hashable)
_To = TypeVar("_To")


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer keeps on one GPU: `page_bytes` for each block of `block_size` tokens.

    A linear-attention layer keeps one page a request, whatever its length.
    """

    kind: AttentionKind
    window: int | None
    block_size: int
    page_bytes: int


class RequestLimits(NamedTuple):
    """What bounds one request: token budget times batches in flight, and linear-attention states kept for it."""

    max_in_flight_tokens: int
    states_per_request: int = 1


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share one block table; `page_bytes` is that of one of the `num_layers` of them on this GPU.

    `drafting` are a drafter's layers of another page size, which keep part of each block. `has_drafter`: some of the layers are a drafter's, on whichever GPU.
    """

    kind: AttentionKind
    window: int | None
    num_layers: int
    block_size: int
    page_bytes: int
    drafting: tuple[LayerCache, ...] = ()
    has_drafter: bool = False

    @property
    def drafter_bytes(self) -> int:
        """What they add to each block."""
        return sum(cache.page_bytes * self.block_size // cache.block_size for cache in self.drafting)

    @property
    def bytes_per_block(self) -> int:
        return self.num_layers * self.page_bytes + self.drafter_bytes

    def blocks_per_request(self, num_tokens: int, limits: RequestLimits) -> int:
        """Most blocks that one request of `num_tokens` ever holds in this group."""
        if self.kind == "linear":
            return limits.states_per_request
        if self.kind == "sliding" and self.window is not None:
            held = min(self.window - 1 + limits.max_in_flight_tokens, num_tokens)
            return ceil_div(held, self.block_size) + 1  # a window may begin in the middle of a block
        if self.kind == "chunked" and self.window is not None:
            num_tokens = min(self.window + limits.max_in_flight_tokens, num_tokens)
        return ceil_div(num_tokens, self.block_size)


def request_limits(engine: ResolvedEngine) -> RequestLimits:
    """Of all batches in flight; prefix caching keeps a second state to resume from, and a third where a pass writes two. Each draft has one."""
    states = 1 + int(engine.enable_prefix_caching) + int(engine.writes_state_checkpoints)
    if engine.speculation:
        states += engine.speculation.num_speculative_tokens
    return RequestLimits(engine.max_num_batched_tokens * engine.num_batches_in_flight, states)


@dataclass(frozen=True, slots=True)
class KVCacheLayout:
    """All groups of a model, seen from one GPU; a block serves one group and has room for its layers here."""

    groups: tuple[KVGroup, ...]
    limits: RequestLimits

    @property
    def bytes_per_block(self) -> int:
        return max(group.bytes_per_block for group in self.groups)

    @property
    def block_size(self) -> int:
        """Tokens a block: that of the groups whose blocks count tokens, the smallest where they differ."""
        return min(group.block_size for group in self.groups)

    def num_blocks(self, available_bytes: int) -> int:
        return max(0, available_bytes) // self.bytes_per_block

    def blocks_per_request(self, num_tokens: int) -> int:
        return sum(group.blocks_per_request(num_tokens, self.limits) for group in self.groups)

    def max_concurrency(self, num_blocks: int, max_model_len: int) -> float:
        """Requests of `max_model_len` that fit at once, null block included, as vLLM logs it."""
        return num_blocks / self.blocks_per_request(max_model_len)

    def longest_request(self, num_blocks: int, max_model_len: int) -> int:
        """Most tokens, up to `max_model_len`, that one request can have beside the null block; 0 when none."""
        shortest, longest = 0, max_model_len
        while shortest < longest:
            middle = (shortest + longest + 1) // 2
            if self.blocks_per_request(middle) <= num_blocks - 1:
                shortest = middle
            else:
                longest = middle - 1
        return shortest


def kv_cache_layout(
    model: ModelSpec,
    engine: ResolvedEngine,
    stage: Stage | None = None,
    *,
    hybrid: bool = True,
    drafter: ModelSpec | None = None,
) -> KVCacheLayout:
    """Groups of `model` under `engine`; without `hybrid` each attention layer is allocated as full attention.

    The last stage keeps the KV cache of the `drafter`'s layers as well.
    Without `stage`, one GPU holds layers of the whole stack. Raises ConfigError when the pages of its layers cannot be made one size.
    """
    caches = _each_once(lambda attention: layer_cache(attention, engine), [layer.attention for layer in model.layers])
    if not hybrid:
        caches = [_unwindowed(cache) for cache in caches]
    num_target, here = len(caches), range(stage.start, stage.stop) if stage else range(len(caches))
    drafting = [layer_cache(layer.attention, engine) for layer in drafter.layers] if drafter else []
    drafts_here = stage is None or stage.is_last
    if drafting and set(drafting) <= set(caches):  # layers like the model's own
        caches = caches + drafting
        here = range(here.start, here.stop + len(drafting) * drafts_here)
        drafting = []
    groups = kv_groups(with_one_page_size(caches, engine.state_block_alignment_tokens), here, num_target)
    return KVCacheLayout(_with_drafting(groups, drafting, is_here=drafts_here), request_limits(engine))


def _with_drafting(groups: tuple[KVGroup, ...], drafting: list[LayerCache], *, is_here: bool) -> tuple[KVGroup, ...]:
    """Pages of another size beside those of the first group that keeps whole contexts, as vLLM lays out layers of one type.

    Raises ConfigError where there is none, or where the drafter keeps something else.
    """
    if not drafting:
        return groups
    whole = next((place for place, group in enumerate(groups) if group.kind in {"full", "mla"}), None)
    if whole is None or any(cache.kind not in {"full", "mla"} for cache in drafting):
        raise ConfigError(
            "speculative_config: a drafter whose layers keep another KV cache than the model's is planned for full attention"
            " only; use another drafter."
        )
    of_both = replace(groups[whole], drafting=tuple(drafting) if is_here else (), has_drafter=True)
    return (*groups[:whole], of_both, *groups[whole + 1 :])


def layer_cache(attention: Attention, engine: ResolvedEngine) -> LayerCache:
    """One layer's page on one GPU; KV heads fewer than GPUs are replicated, MLA's latent vector always is."""
    mine = attention.per_rank(engine.tensor_parallel_size)
    if attention.kind == "linear":
        return LayerCache("linear", None, engine.block_size, mine.state_bytes)
    bytes_per_token = mine.kv_numbers_per_token * engine.kv_cache_dtype_bytes + _indexer_bytes_per_token(mine)
    cache = LayerCache(mine.kind, mine.window, engine.block_size, engine.block_size * bytes_per_token)
    return cache if cache.kind != "chunked" or _chunks_have_groups(engine) else _unwindowed(cache)


def _indexer_bytes_per_token(attention: Attention) -> int:
    """Sparse attention keeps its indexer's key in fp8, with a 4-byte scale for each 128 numbers."""
    return attention.index_head_dim + 4 * ceil_div(attention.index_head_dim, 128)


def _chunks_have_groups(engine: ResolvedEngine) -> bool:
    """Chunked attention was allocated as full: Llama-4-Scout so logged on 0.15.1; from 0.17 on it has its own groups."""
    return parse_version(engine.vllm_version) >= parse_version("0.17")


def _unwindowed(cache: LayerCache) -> LayerCache:
    return replace(cache, kind="full", window=None) if cache.kind in {"sliding", "chunked"} else cache


def with_one_page_size(caches: list[LayerCache], state_block_alignment_tokens: int) -> list[LayerCache]:
    """The same layers with pages of one size: smaller attention blocks take more tokens, states are padded."""
    caches = _blocks_as_large_as_states(caches, state_block_alignment_tokens)
    page_bytes = max(cache.page_bytes for cache in caches)
    return _each_once(lambda cache: _grown(cache, page_bytes), caches)


def _each_once(make: Callable[[_From], _To], layers: Sequence[_From]) -> list[_To]:
    """What is made of each layer; most are alike, and a search plans thousands of times."""
    made = {layer: make(layer) for layer in dict.fromkeys(layers)}
    return [made[layer] for layer in layers]


def _blocks_as_large_as_states(caches: list[LayerCache], alignment: int) -> list[LayerCache]:
    """Attention blocks long enough that their page holds a linear layer's state."""
    state_bytes = max((cache.page_bytes for cache in caches if cache.kind == "linear"), default=0)
    attention = [cache for cache in caches if cache.kind != "linear"]
    if not state_bytes or not attention:
        return caches
    bytes_per_token = max(cache.page_bytes // cache.block_size for cache in attention)
    alignment = lcm(alignment, max(alignment, attention[0].block_size))
    block_size = alignment * ceil_div(state_bytes, alignment * bytes_per_token)
    return [_resized(cache, block_size) for cache in caches]


def _resized(cache: LayerCache, block_size: int) -> LayerCache:
    per_token = 0 if cache.kind == "linear" else cache.page_bytes // cache.block_size
    return replace(cache, block_size=block_size, page_bytes=per_token * block_size or cache.page_bytes)


def _grown(cache: LayerCache, page_bytes: int) -> LayerCache:
    if cache.kind == "linear":
        return replace(cache, page_bytes=page_bytes)
    ratio, remainder = divmod(page_bytes, cache.page_bytes)
    if remainder:
        raise ConfigError(
            f"the KV pages of all layers must have one size, but {page_bytes:,} bytes is no multiple of the "
            f"{cache.page_bytes:,} bytes of a {cache.kind} attention layer; choose another `tensor_parallel_size`."
        )
    return replace(cache, block_size=cache.block_size * ratio, page_bytes=page_bytes)


def kv_groups(caches: Sequence[LayerCache], here: range, num_target: int) -> tuple[KVGroup, ...]:
    """Layers of equal kind and window, split so that all groups have about as many; `here` are those on this GPU, and behind `num_target` come a drafter's."""
    places: dict[LayerCache, list[int]] = {}
    for place, cache in enumerate(caches):
        places.setdefault(cache, []).append(place)
    size = _group_size([len(of_kind) for of_kind in places.values()])
    return tuple(
        KVGroup(
            cache.kind,
            cache.window,
            sum(p in here for p in dealt),
            cache.block_size,
            cache.page_bytes,
            has_drafter=dealt[-1] >= num_target,
        )
        for cache, of_kind in places.items()
        for dealt in _dealt(of_kind, size)
    )


def _group_size(counts: Sequence[int]) -> int:
    """The fewest layers of a kind, or the most when that pads the others by less than half (vLLM's rule)."""
    fewest, most = min(counts), max(counts)
    return most if most < 1.5 * fewest else fewest


def _dealt(places: list[int], size: int) -> list[list[int]]:
    """Layers dealt like cards to as few groups as hold them at `size` each, so that stages get some of each group."""
    num_groups = ceil_div(len(places), size)
    return [places[first::num_groups] for first in range(num_groups)]
