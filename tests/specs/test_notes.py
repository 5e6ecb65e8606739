"""Arguments that do nothing, or something else than asked for, are told in words."""

import pytest

from sim.errors import ConfigError
from sim.specs.engine import EngineConfig
from sim.specs.models import load_model
from sim.specs.notes import engine_notes, ranks_notes
from sim.specs.releases import KNOWN_VERSIONS

PLAIN = EngineConfig()
UNSPLIT = EngineConfig(enable_chunked_prefill=False)


@pytest.mark.parametrize("version", [None, *KNOWN_VERSIONS, "v0.15", "0.21.0rc1"])
def test_of_a_known_version_there_is_nothing_to_say(version: str | None) -> None:
    """However it is spelled."""
    assert engine_notes(PLAIN, version) == ()


@pytest.mark.parametrize(
    ("version", "sentence"),
    [
        ("0.99.1", "vLLM 0.99.1 is newer than any known (0.8.5 to 0.33.0); it is taken as 0.33.0."),
        ("0.12.7", "vLLM 0.12.7 is not one of the versions known; it is taken as 0.12.0."),
        ("0.8.1", "vLLM 0.8.1 is older than any known (0.8.5 to 0.33.0); it is taken as 0.8.5."),
    ],
)
def test_an_unknown_version_is_named_with_the_one_it_is_taken_as(version: str, sentence: str) -> None:
    assert engine_notes(PLAIN, version) == (sentence,)


def test_a_version_of_another_engine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"0\.8 or newer"):
        engine_notes(PLAIN, "0.7.3")


def test_old_versions_split_prompts_whatever_is_asked_for() -> None:
    """As recorded: 0.11.0 and older force chunked prefill on, 0.11.1 lets it be switched off."""
    (note,) = engine_notes(UNSPLIT, "0.11.0")
    assert note.startswith("enable_chunked_prefill=False changes nothing: vLLM 0.11.0 splits prompts")
    assert note.endswith("obeys from 0.11.1 on.")
    assert engine_notes(UNSPLIT, "0.11.1") == engine_notes(PLAIN, "0.11.0") == ()


def test_nothing_is_split_without_ranks_that_share_experts() -> None:
    """One engine, or engines of a dense model; thresholds are those of a switch."""
    (note,) = engine_notes(EngineConfig(dbo_prefill_token_threshold=64), None)
    assert note == "dbo_prefill_token_threshold changes nothing here: without enable_dbo no step is split."
    experts, dense = load_model("Qwen3-30B-A3B"), load_model("Llama-3.1-8B")
    for ranks, model, num_notes in ((1, experts, 1), (2, dense, 1), (2, experts, 0)):
        engine = EngineConfig(data_parallel_size=ranks, enable_dbo=True, all2all_backend="deepep_low_latency")
        notes = ranks_notes(engine, model)
        assert len(notes) == num_notes
        assert all("enable_dbo changes nothing here" in note for note in notes)
