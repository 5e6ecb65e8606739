"""What a way of speculating asks of the scheduler. Mirrors vLLM's config/speculative.py and config/vllm.py (0.33)."""

from dataclasses import dataclass

from sim.errors import ConfigError

EAGLES = ("eagle", "eagle3", "mtp", "dflash")
"""They draft from the target's hidden states. All but DFlash also read the token behind each, so that KV of theirs depends on it."""
METHODS = ("ngram", "ngram_gpu", "draft_model", *EAGLES)


@dataclass(frozen=True, slots=True)
class Speculation:
    """`num_speculative_tokens` drafts a step, by a method of vLLM's; `mtp_layers` modules draft them, if it is mtp.

    `by_batch_size` says how many instead after a batch of so many requests, and its last entry after all larger ones. Drafters that read
    the token behind each position have the last block of a prefix hit computed again, unless `trusts_last_block`, or unless
    `hashes_look_ahead`: the hash of a block then covers the tokens that they read behind it. Where `dflash_reads_ahead`, as before vLLM 0.33,
    DFlash counts as one of them and drafts within the batch. Raises ConfigError for what vLLM does not know.
    """

    num_speculative_tokens: int
    method: str = "ngram"
    parallel_drafting: bool = False
    mtp_layers: int = 1
    by_batch_size: tuple[int, ...] = ()
    trusts_last_block: bool = False
    hashes_look_ahead: bool = False
    dflash_reads_ahead: bool = True

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ConfigError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}.")
        if self.num_speculative_tokens < 1:
            raise ConfigError(f"num_speculative_tokens must be at least 1, got {self.num_speculative_tokens}.")
        if any(not 0 <= count <= self.num_speculative_tokens for count in self.by_batch_size):
            raise ConfigError(
                f"num_speculative_tokens_per_batch_size must lie between 0 and num_speculative_tokens,"
                f" {self.num_speculative_tokens}, got {list(self.by_batch_size)}."
            )

    @property
    def keeps_kv(self) -> bool:
        """Whether what drafts has layers with a KV cache of their own."""
        return self.method not in ("ngram", "ngram_gpu")

    @property
    def num_lookahead_tokens(self) -> int:
        """Slots allocated ahead of each request's tokens."""
        if not self.keeps_kv:
            return 0
        return self.num_speculative_tokens + (self.method == "dflash")

    @property
    def num_draft_slots(self) -> int:
        """What each scheduled request costs of the input budget beside its tokens."""
        k = self.num_speculative_tokens
        if self.method == "draft_model":
            return k if self.parallel_drafting else 1
        if self.method == "dflash":
            return k if self.dflash_reads_ahead else 0
        return k - 1 if self.parallel_drafting and self.method in EAGLES else 0

    @property
    def needs_first_runner(self) -> bool:
        """Whether vLLM's second model runner lacks it, which alone has async scheduling over pipeline stages."""
        return self.parallel_drafting and self.method != "dflash"

    @property
    def doubts_last_block(self) -> bool:
        """Whether the drafter reads the token behind each position, and is not trusted all the same."""
        reads_ahead = self.method in EAGLES and (self.method != "dflash" or self.dflash_reads_ahead)
        return reads_ahead and not self.trusts_last_block

    @property
    def drops_last_hit(self) -> bool:
        """Whether the last block of a prefix hit is computed again."""
        return self.doubts_last_block and not self.hashes_look_ahead

    @property
    def num_hash_lookahead_tokens(self) -> int:
        """Tokens behind a block that its hash covers too."""
        return self.num_prefill_lookahead if self.doubts_last_block and self.hashes_look_ahead else 0

    @property
    def num_prefill_lookahead(self) -> int:
        """No chunk ends less than so many tokens ahead of the known ones' end, where these are more than one."""
        if self.method == "mtp" and self.mtp_layers > 1:
            return self.num_speculative_tokens
        return int(self.method in EAGLES)

    @property
    def num_tokens_not_kept(self) -> int:
        """Known tokens at the end whose KV is written anew as others follow them, by MTP modules of which each looks a token further ahead."""
        return max(0, self.num_prefill_lookahead - 1)

    def num_drafts_after(self, num_requests: int) -> int:
        """Drafts for the next step of the requests of a batch of that size."""
        if not self.by_batch_size:
            return self.num_speculative_tokens
        return self.by_batch_size[min(num_requests, len(self.by_batch_size) - 1)]
