"""The linear step-time model and its file."""

from pathlib import Path

import pytest

from sim.errors import ProfileError
from sim.steptime.linear import LinearStepTime, read_linear
from sim.steptime.protocol import StepShape

YAML = "kind: linear\nbase_s: 0.01\nper_token_s: 0.001\nper_context_token_s: 0.0001\n"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "linear.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_base_tokens_and_contexts_after_the_step(tmp_path: Path) -> None:
    """10 ms, 1 ms for each of 2 + 5 tokens, 0.1 ms for each of 30 + (5 + 8) context tokens."""
    model = read_linear(write(tmp_path, YAML))
    assert model.step_s(StepShape(2, 30, ((5, 8),), 2)) == pytest.approx(0.010 + 0.007 + 0.0043)


def test_decode_steps_equal_single_steps() -> None:
    """The curve of two decodes says what their steps take."""
    model, contexts = LinearStepTime(0.01, 0.001, 0.0001), (30, 32, 34)
    curve = model.decode_curve(2)
    assert [curve.at(tokens) for tokens in contexts] == [model.step_s(StepShape(2, c, (), 2)) for c in contexts]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (YAML.replace("linear", "cubic"), "`kind` should be 'linear', got 'cubic'."),
        (YAML.replace("0.01", "-0.01"), "`base_s` should be greater than or equal to 0, got -0.01."),
        (YAML.replace("0.01", ".inf"), "`base_s` should be a finite number, got inf."),
        (YAML.replace("per_token_s", "per_tokens"), "`per_token_s` is required but absent."),
        (YAML + "per_request_s: 1.0\n", "`per_request_s` is not a known key."),
        ("- 1\n", "the file should be a mapping of keys to values, got [1]."),
    ],
)
def test_a_wrong_file_is_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    """File, field, rule and what was got."""
    path = write(tmp_path, text)
    with pytest.raises(ProfileError) as caught:
        read_linear(path)
    assert str(caught.value).startswith(f"{path}: {problem}")
