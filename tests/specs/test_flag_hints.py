"""What somebody meant by a flag that is not there."""

import pytest

from sim.specs.flag_hints import MEANINGS, likely_flags
from sim.specs.serve_flags import known_flags

ENGINE = [flag.lstrip("-") for flag in known_flags()]


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("num-gpus", "tensor-parallel-size"),
        ("TP_SIZE", "tensor-parallel-size"),
        ("concurrency", "max-num-seqs"),
        ("batch-size", "max-num-seqs"),
        ("kv-dtype", "kv-cache-dtype"),
        ("context-length", "max-model-len"),
        ("mem-fraction-static", "gpu-memory-utilization"),
        ("chunked-prefill-size", "max-num-batched-tokens"),
        ("max-num-sqs", "max-num-seqs"),
        ("gpu-memory-utilisation", "gpu-memory-utilization"),
        ("batched-tokens-max", "max-num-batched-tokens"),
        ("eviction-policy", "prefix-cache-eviction"),
    ],
)
def test_meaning_words_and_spelling_lead_to_the_flag(name: str, flag: str) -> None:
    """Another tool's name, the same words in another order, a slip of the fingers."""
    assert likely_flags(name, ENGINE)[0] == flag


@pytest.mark.parametrize("name", ["slo", "zzzz", "x", "objective"])
def test_what_is_like_nothing_gets_no_hint(name: str) -> None:
    """`--slo` is not `--json` with other letters."""
    assert likely_flags(name, [*ENGINE, "json", "step-log", "gpu"]) == []


def test_only_flags_that_are_there_are_named() -> None:
    """`--rps` means a request rate where there is one, else the rate to serve."""
    assert likely_flags("rps", ["json", "rate", "out"]) == ["rate"]
    assert likely_flags("rps", ["json", "out"]) == []


def test_a_name_of_its_own_is_nobodys_other_name() -> None:
    """No flag of vLLM stands under another's meanings, where it could never be reached."""
    others = {name for names in MEANINGS.values() for name in names}
    assert not others & set(ENGINE)
