"""Figures on drafts, from how many verifications accepted how many."""

from dataclasses import replace

import pytest

from sim.engine.records import SpeculationRecords
from sim.metrics.speculation import speculation_figures
from tests.metrics.makers import make_records


def test_figures_follow_from_the_verifications() -> None:
    """Four of three drafts each: two accept none, one accepts one, one accepts all."""
    records = replace(make_records(), speculation=SpeculationRecords((2, 1, 0, 1), 12))
    assert speculation_figures(records) == {
        "spec_decode_acceptance_rate": pytest.approx(100 * 4 / 12),
        "spec_decode_acceptance_length": 2.0,
        "spec_decode_num_drafts": 4,
        "spec_decode_draft_tokens": 12,
        "spec_decode_accepted_tokens": 4,
        "spec_decode_per_position_acceptance_rates": [0.5, 0.25, 0.25],
    }


def test_there_are_none_without_drafts() -> None:
    """No keys where nobody speculates; no division by zero where nothing was verified."""
    assert speculation_figures(make_records()) == {}
    figures = speculation_figures(replace(make_records(), speculation=SpeculationRecords((0, 0), 0)))
    assert figures["spec_decode_acceptance_length"] is None
    assert figures["spec_decode_per_position_acceptance_rates"] == [None]


def test_replicas_are_added_up() -> None:
    """Also those that may draft more than others."""
    joined = SpeculationRecords.joined([SpeculationRecords((1, 2), 3), SpeculationRecords((4, 0, 5), 18)])
    assert joined == SpeculationRecords((5, 2, 5), 21)
    assert SpeculationRecords.joined([]) is None
