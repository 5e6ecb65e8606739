"""`--acceptance` on the command line."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Servecast

RUN = ("simulate", "Qwen3-0.6B", "--gpu", "h100-sxm", "--trace", "chat", "--limit", "3", "--no-intervals", "--json")
NGRAM = ("--spec-method", "ngram", "--spec-tokens", "2")


@pytest.mark.parametrize(("given", "lengths"), [("2", [1.0, 0.0]), ("1,1", [1.0, 1.0]), ("0,0", [0.0, 0.0])])
def test_a_length_or_rates_by_position(servecast: Servecast, given: str, lengths: list[float]) -> None:
    """What is certain is what comes out."""
    status, out, _ = servecast(*RUN, *NGRAM, "--acceptance", given)
    assert status == 0
    assert f'"spec_decode_acceptance_length": {1 + sum(lengths)}' in out
    assert '"acceptance": ' in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            (*NGRAM, "--acceptance", "high"),
            "--acceptance must be a mean acceptance length such as 2.6, or rates such as",
        ),
        (("--acceptance", "2"), "acceptance says how drafts fare, and nothing drafts; give a speculative_config"),
        (NGRAM, "how many drafts of method ngram are accepted is not known here; say `acceptance`"),
        ((*NGRAM, "--acceptance", "0.5,0.7"), "acceptance must lie between 0 and 1 and must not increase"),
    ],
)
def test_what_is_wrong_is_said(servecast: Servecast, flags: tuple[str, ...], message: str) -> None:
    """One sentence, and status 2."""
    status, _, err = servecast(*RUN, *flags)
    assert status == 2
    assert message in err


def test_a_search_tells_drafts_as_json(servecast: Servecast, tmp_path: Path) -> None:
    """The best of three numbers of drafts, as vLLM's flag has them."""
    space = tmp_path / "space.yaml"
    space.write_text("num_speculative_tokens: [0, 2]\n")
    run = ("optimize", *RUN[1:], "--space", space, "--executor", "serial")
    status, out, err = servecast(*run, *NGRAM, "--acceptance", "3")
    assert (status, err.count("Error")) == (0, 0)
    found = json.loads(out)
    assert found["best"]["engine"]["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 2}
