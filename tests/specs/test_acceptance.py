"""How many drafts are accepted, by whoever says so."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.api import simulate
from sim.engine.request import Request
from sim.engine.walking.acceptance import DrawnAcceptance
from sim.errors import ConfigError, TraceError
from sim.specs.acceptance import accepted_rates, checked_acceptance, rates_of_length
from sim.specs.engine import EngineConfig
from sim.specs.speculation import Speculation
from sim.specs.speculative_config import SpeculativeConfig
from sim.workload.readers import as_trace
from sim.workload.writers import write_trace

EAGLE3, NGRAM = SpeculativeConfig("eagle3", "M", 3), SpeculativeConfig("ngram", None, 3)
THREE = Speculation(3, "eagle3")


@given(count=st.integers(1, 16), share=st.floats(0, 1))
def test_a_mean_length_is_kept_with_the_least_variance(count: int, share: float) -> None:
    """vLLM's rule: the first drafts always, the next with what is left, the others never."""
    length = 1 + share * count
    rates = rates_of_length(length, count)
    assert len(rates) == count
    assert sum(rates) == pytest.approx(length - 1)
    assert sum(0 < rate < 1 for rate in rates) <= 1
    assert list(rates) == sorted(rates, reverse=True)


def test_a_length_of_two_and_a_half() -> None:
    """One draft always, the second every other time."""
    assert rates_of_length(2.5, 4) == (1.0, 0.5, 0.0, 0.0)


def test_what_vllm_is_told_is_taken_as_it_is() -> None:
    """Synthetic rates and lengths."""
    of_length = SpeculativeConfig(
        "eagle3", "M", 3, rejection_sample_method="synthetic", synthetic_acceptance_length=1.25
    )
    of_rates = SpeculativeConfig(
        "eagle3", "M", 3, rejection_sample_method="synthetic", synthetic_acceptance_rates=(0.9, 0.5, 0.5)
    )
    assert accepted_rates(of_length, THREE, None) == ((0.25, 0.0, 0.0), None)
    assert accepted_rates(of_rates, THREE, None) == ((0.9, 0.5, 0.5), None)
    with pytest.raises(ConfigError, match="both say how drafts fare"):
        accepted_rates(of_rates, THREE, 2.0)


def test_what_a_user_says_is_taken_next() -> None:
    """A length from 1 on, a rate below it, or several rates, of which the first are used."""
    assert accepted_rates(EAGLE3, THREE, checked_acceptance(2.5)).rates == (1.0, 0.5, 0.0)
    assert accepted_rates(EAGLE3, THREE, checked_acceptance([0.7, 0.5, 0.3, 0.1])).rates == (0.7, 0.5, 0.3)
    assert accepted_rates(NGRAM, Speculation(1), checked_acceptance(0.7)).rates == (0.7,)
    for given_one, message in (
        ([0.7, 0.5], "a rate for each of 3 drafts, got 2"),
        (4.5, r"at most 1 \+ num_speculative_tokens \(4\), got 4\.5"),
    ):
        with pytest.raises(ConfigError, match=message):
            accepted_rates(EAGLE3, THREE, checked_acceptance(given_one))
    with pytest.raises(ConfigError, match="must not increase"):
        checked_acceptance([0.5, 0.7])


def test_what_nobody_says_was_measured_or_must_be_said() -> None:
    """Tables for EAGLE-3 and MTP, with a note; other methods depend on the text too much."""
    found = accepted_rates(EAGLE3, THREE, None)
    assert found.mean_length == pytest.approx(2.857)
    assert "SPEED-Bench" in str(found.note)
    assert list(found.rates) == sorted(found.rates, reverse=True)
    with pytest.raises(
        ConfigError, match="how many drafts of method ngram are accepted is not known here; say `acceptance`"
    ):
        accepted_rates(NGRAM, Speculation(3), None)
    with pytest.raises(ConfigError, match="beyond 8 drafts"):
        accepted_rates(EAGLE3, Speculation(9, "eagle3"), None)


def drawn(
    rates: tuple[float, ...], seed: int = 0, rows: int = 1, tokens: int = 1000
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    acceptance = DrawnAcceptance(rates, seed)
    counts = [acceptance.accepted(Request(row, "", 0.0, 1, tokens)) for row in range(rows)]
    return np.frombuffer(b"".join(counts), dtype=np.uint8)


def test_draws_follow_the_rates_and_depend_on_seed_and_row_alone() -> None:
    """Of a hundred thousand verifications, within four standard deviations by position."""
    rates = (0.8, 0.6, 0.1)
    counts = drawn(rates, rows=100)
    for position, rate in enumerate(rates, start=1):
        found = float((counts >= position).mean())
        assert found == pytest.approx(rate, abs=4 * (rate * (1 - rate) / len(counts)) ** 0.5)
    np.testing.assert_array_equal(counts, drawn(rates, rows=100))
    assert (counts != drawn(rates, seed=1, rows=100)).any()
    assert (counts[:1000] != counts[1000:2000]).any()


def test_what_is_certain_is_drawn_every_time() -> None:
    """Two and never a third."""
    assert set(drawn((1.0, 1.0, 0.0)).tolist()) == {2}


def test_requests_may_have_lengths_of_their_own() -> None:
    """One that accepts nothing, one that always accepts two, one that accepts one or two."""
    acceptance = DrawnAcceptance((1.0,), 0, np.array([1.0, 3.0, 2.25]))
    found = [list(acceptance.accepted(Request(row, "", 0.0, 1, 4000))) for row in range(3)]
    assert [set(counts) for counts in found] == [{0}, {2}, {1, 2}]
    assert 1 + sum(found[2]) / 4000 == pytest.approx(2.25, abs=0.03)


def test_a_trace_may_say_how_drafts_of_its_requests_fare(tmp_path: Path) -> None:
    """Read, written and replayed: the first request takes a third of the second's steps for as many tokens."""
    file = tmp_path / "trace.csv"
    file.write_text("arrival_s,prompt_tokens,output_tokens,acceptance_length\n0,8,90,3\n0,8,90,1\n")
    trace = as_trace(file)
    write_trace(trace, tmp_path / "again.csv")
    assert as_trace(tmp_path / "again.csv").acceptance_length.tolist() == [3.0, 1.0]  # type: ignore[union-attr]
    engine = EngineConfig(speculative_config=EAGLE3)
    requests = simulate("Llama-3.1-8B", "h100-sxm", trace, engine=engine, acceptance=2.0, intervals=False).requests
    times_s = requests["finish_s"] - requests["first_token_s"]
    assert times_s[1] == pytest.approx(3 * times_s[0], rel=0.1)
    file.write_text("arrival_s,prompt_tokens,output_tokens,acceptance_length\n0,8,90,0.5\n")
    with pytest.raises(
        TraceError, match=r"line 2: `acceptance_length` must be at least 1, the token that is sampled, got 0\.5"
    ):
        as_trace(file)
