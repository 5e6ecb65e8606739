"""What each way of speculating asks of the scheduler."""

import pytest

from sim.errors import ConfigError
from sim.specs.speculating import ways_of
from sim.specs.speculation import Speculation


@pytest.mark.parametrize(
    ("speculation", "asked"),
    [
        (Speculation(3, "ngram"), (0, 0, False, 0)),
        (Speculation(3, "eagle"), (3, 0, True, 1)),
        (Speculation(3, "eagle3", parallel_drafting=True), (3, 2, True, 1)),
        (Speculation(3, "mtp", mtp_layers=3), (3, 0, True, 3)),
        (Speculation(3, "draft_model"), (3, 1, False, 0)),
        (Speculation(3, "draft_model", parallel_drafting=True), (3, 3, False, 0)),
        (Speculation(3, "dflash"), (4, 3, True, 1)),
        (Speculation(3, "dflash", **ways_of("0.33.0")), (4, 0, False, 1)),
        (Speculation(3, "eagle", **ways_of("0.33.0")), (3, 0, False, 1)),
        (Speculation(3, "eagle", **ways_of("0.33.0", hashes_look_ahead=False)), (3, 0, True, 1)),
        (Speculation(3, "eagle", trusts_last_block=True), (3, 0, False, 1)),
    ],
)
def test_slots_and_blocks_that_a_method_asks_for(speculation: Speculation, asked: tuple[int, int, bool, int]) -> None:
    """Slots ahead, slots of the input budget, the last block of a hit, tokens that a chunk has to leave."""
    found = (
        speculation.num_lookahead_tokens,
        speculation.num_draft_slots,
        speculation.drops_last_hit,
        speculation.num_prefill_lookahead,
    )
    assert found == asked


@pytest.mark.parametrize(
    ("speculation", "num_tokens"),
    [
        (Speculation(3, "eagle", **ways_of("0.32.0")), 0),
        (Speculation(3, "eagle", **ways_of("0.33.0")), 1),
        (Speculation(3, "mtp", mtp_layers=3, **ways_of("0.33.0")), 3),
        (Speculation(3, "dflash", **ways_of("0.33.0")), 0),
        (Speculation(3, "ngram", **ways_of("0.33.0")), 0),
        (Speculation(3, "eagle", **ways_of("0.33.0", trusts_last_block=True)), 0),
    ],
)
def test_hashes_cover_what_drafters_read_behind_a_block(speculation: Speculation, num_tokens: int) -> None:
    """A token, or as many as there are drafts, each by an MTP module of its own."""
    assert speculation.num_hash_lookahead_tokens == num_tokens


def test_drafts_by_batch_size_go_on_as_they_ended() -> None:
    """Four for one or two requests, one for all that are more."""
    speculation = Speculation(4, by_batch_size=(0, 4, 4, 1))
    assert [speculation.num_drafts_after(count) for count in (1, 2, 3, 50)] == [4, 4, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "num_speculative_tokens must be at least 1, got 0."),
        (
            (3, "medusa"),
            "method must be one of ngram, ngram_gpu, draft_model, eagle, eagle3, mtp, dflash, got 'medusa'.",
        ),
    ],
)
def test_what_vllm_does_not_know_is_an_error(arguments: tuple[int, str], message: str) -> None:
    """With the rule and what was got."""
    with pytest.raises(ConfigError, match=message):
        Speculation(*arguments)
    with pytest.raises(ConfigError, match=r"between 0 and num_speculative_tokens, 2, got \[0, 3\]"):
        Speculation(2, by_batch_size=(0, 3))
