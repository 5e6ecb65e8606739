"""What comes from outside is read within limits, and what breaks one is refused in one sentence."""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from sim.errors import ConfigError
from sim.inputs import is_there, parse_json, parse_yaml, read_json, read_text, read_yaml
from sim.units import MIB

NINES = "9" * 5000
LETTERS = "abcdefghijkl"
BILLION_LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{this}: &{this} [{', '.join([f'*{last}'] * 9)}]\n" for last, this in pairwise(LETTERS)
)
STAIRS = "a0: &a0 [1]\n" + "".join(f"a{step}: &a{step} [*a{step - 1}]\n" for step in range(1, 500))

BAD_YAML = {
    "a: !!int abc": "f: is not valid YAML: the value is no readable int, got 'abc' at line 1, column 4.",
    "a: !!int ''": "no readable int",
    "a: !!float x": "no readable float",
    "a: !!bool x": "no readable bool",
    "a: 0x_": "no readable int",
    f"a: {NINES}": "no readable int, got '9999",
    "a: 9223372036854775808": "an integer must have at most 64 bits, got 9223372036854775808",
    "[" * 1_500: "nested deeper than 100 levels",
    "[" * 100_000: "nested deeper than 100 levels",
    "a: " + "{b: " * 100_000: "nested deeper than 100 levels",
    "- " * 100_000: "nested deeper than 100 levels",
    BILLION_LAUGHS: "more than 100,000 values, those of aliases included",
    STAIRS: "nested deeper than 100 levels",
    "a: &a [*a]": "an alias must name what stands complete before it",
    "a: *nowhere": "an alias must name what stands complete before it",
    "a: 1\na: 2": "a key is given twice",
    "1: a\n0x1: b": "a key is given twice",
    "[1]: 2": "a key must be a number or a text",
    "a: !!python/object:os.system ls": "could not determine a constructor",
    "a: !!timestamp 2026-02-30": "could not determine a constructor",
    "a: !!binary x": "could not determine a constructor",
    "a: \x01": "control characters are not allowed",
    "--- a\n--- b": "expected a single document",
}


@pytest.mark.parametrize(("text", "rule"), BAD_YAML.items(), ids=[text[:24] for text in BAD_YAML])
def test_bad_yaml_is_one_sentence(text: str, rule: str) -> None:
    """It names the place and the rule, and is short."""
    with pytest.raises(ConfigError) as refusal:
        parse_yaml(text, ConfigError, "f")
    sentence = str(refusal.value)
    assert rule in sentence
    assert "\n" not in sentence
    assert len(sentence) < 300


@pytest.mark.parametrize(
    ("text", "value"),
    {
        "1e-5": 1e-5,
        "-1E+5": -1e5,
        ".5e1": 5.0,
        "1.5e3": 1500.0,
        "1e5x": "1e5x",
        "08": "08",
        "12": 12,
        "2026-02-30": "2026-02-30",
        "2026-02-28": "2026-02-28",
        "9223372036854775807": 2**63 - 1,
        "{a: &b {x: 1}, c: {<<: *b, x: 2}}": {"a": {"x": 1}, "c": {"x": 2}},
    }.items(),
)
def test_plain_yaml(text: str, value: object) -> None:
    """Numbers as YAML 1.2 writes them; dates are texts; aliases and merges of sane size."""
    assert parse_yaml(text, ConfigError, "f") == value


@pytest.mark.parametrize(
    ("text", "rule"),
    {
        '{"a": 1': "f: is not valid JSON: Expecting ',' delimiter at line 1, column 8.",
        NINES: "must have integers of at most 64 bits, got one of 5,000 digits",
        "[9223372036854775808]": "must have integers of at most 64 bits, got 9223372036854775808",
        "[" * 100_000: "nested deeper than 100 levels",
        "[" * 500 + "]" * 500: "nested deeper than 100 levels",
        '"\\ud800"': "half of a surrogate pair",
    }.items(),
    ids=lambda text: text[:12],
)
def test_bad_json_is_one_sentence(text: str, rule: str) -> None:
    """It names the place and the rule."""
    with pytest.raises(ConfigError) as refusal:
        parse_json(text, ConfigError, "f")
    assert rule in str(refusal.value)


def test_a_whole_surrogate_pair_is_a_character() -> None:
    """As programs that write ASCII spell it; and a backslash before a `u` is none."""
    assert parse_json('["\\ud83d\\ude00", "\\\\ud800"]', ConfigError, "f") == ["\U0001f600", "\\ud800"]


def test_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    """As editors on Windows write it."""
    (tmp_path / "f").write_text("\ufeff[1]", encoding="utf-8")
    assert read_json(tmp_path / "f", ConfigError) == read_yaml(tmp_path / "f", ConfigError) == [1]


def test_an_endless_file_is_refused_at_once() -> None:
    """A device of zeros is binary, not a reason to fill the memory."""
    with pytest.raises(ConfigError, match="must be a YAML file, got binary content"):
        read_yaml(Path("/dev/zero"), ConfigError)


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    """Before it is parsed."""
    (tmp_path / "f").write_text("x" * (MIB + 1))
    with pytest.raises(ConfigError, match="must be a YAML file of at most 1 MiB, got a larger one"):
        read_yaml(tmp_path / "f", ConfigError)


@pytest.mark.parametrize("name", ["n" * 300, "a\0b", ".", "none"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    """A name too long, one with a null byte, a folder and nothing at all."""
    with pytest.raises(ConfigError, match=r"\.$"):
        read_text(tmp_path / name, ConfigError, most_bytes=9)
    assert not is_there(tmp_path / name, Path.is_file)


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Path]:
    """A folder that may not be entered, with a file in it; also root may not while the test runs."""
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "f").touch()
    tmp_path.chmod(0o755)
    folder.chmod(0o000)
    if (user := os.geteuid()) == 0:
        os.seteuid(65534)
    yield folder
    os.seteuid(user)
    folder.chmod(0o755)


def test_a_closed_folder_is_one_sentence(closed: Path) -> None:
    """What may not be looked at is not there, and what may not be read says why."""
    assert not is_there(closed / "f")
    with pytest.raises(ConfigError, match=r"closed/f: cannot be read \(Permission denied\)"):
        read_text(closed / "f", ConfigError, most_bytes=9)
