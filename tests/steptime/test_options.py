"""How steps are timed, as users choose it."""

from pathlib import Path
from typing import Any

import pytest

from sim.errors import ConfigError
from sim.steptime.linear import LinearStepTime
from sim.steptime.options import step_time_options


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        ({"composition": "unified"}, "composition must be one of additive, two_pass, max, got 'unified'."),
        ({"sampling": "gredy"}, "sampling must be one of default, greedy, got 'gredy'. Did you mean greedy?"),
        (
            {"expert_routing": "skewd"},
            "expert_routing must be one of skewed, mild, uniform, balanced, got 'skewd'. Did you mean skewed?",
        ),
    ],
)
def test_an_unknown_choice_is_refused(choice: dict[str, Any], sentence: str) -> None:
    """From Python too, where no command line has looked at it."""
    with pytest.raises(ConfigError) as caught:
        step_time_options(**choice)
    assert str(caught.value) == sentence


def test_summaries_say_where_step_times_come_from(tmp_path: Path) -> None:
    """The roofline and its choices, the file that was read, or the kind of the object that was given."""
    path = tmp_path / "steps.yaml"
    path.write_text("kind: linear\nbase_s: 0.01\nper_token_s: 0\nper_context_token_s: 0\n", encoding="utf-8")
    roofline = {"model": "roofline", "composition": "max", "sampling": "default", "expert_routing": "skewed"}
    assert step_time_options("max").to_json() == roofline
    assert step_time_options(step_time_model=path).to_json() == {"model": str(path)}
    assert step_time_options(step_time_model=LinearStepTime(0.01, 0.0, 0.0)).to_json() == {"model": "LinearStepTime"}
