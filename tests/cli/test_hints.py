"""What a command says of a flag that it does not have."""

import pytest

from sim.cli.hints import _commands
from sim.specs.flag_hints import MEANINGS
from sim.specs.serve_flags import known_flags
from tests.cli.conftest import Servecast

SIMULATE = "simulate Llama-3.1-8B --gpu h100-sxm --trace chat"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (f"{SIMULATE} --rps 4", "Did you mean --request-rate?"),
        (f"{SIMULATE} --output x", "Did you mean --out?"),
        (f"{SIMULATE} --num-gpus=2", "Did you mean --tensor-parallel-size?"),
        (f"{SIMULATE} --trials 3", "or of vllm serve; `servecast optimize` has it."),
        (
            "capacity M --users 4",
            "users send when they are answered, at no given rate, so that there is no highest one; `servecast simulate`, `servecast compare` and `servecast explain` have it",
        ),
        (f"{SIMULATE} --goodput 3", ". Did you mean --slo?"),
        ("memory Llama-3.1-8B --gpu h100-sxm --goodput 3", "; `servecast simulate` has --slo."),
        (f"{SIMULATE} --zzzz", "`servecast simulate --help` lists them."),
        ("optimize M --num-gpus 4", "Did you mean --gpus or --tensor-parallel-size?"),
        ("capacity M --qps 4", "Did you mean --request-rate or --rate?"),
        ("memory M --trace chat", "`servecast simulate`, `servecast compare`, `servecast optimize` and others have it"),
        ("models --gpu l4", "`servecast simulate`, `servecast memory`, `servecast compare` and others have it."),
        ("models --jsn", "--jsn is not a flag of `servecast models`. Did you mean --json?"),
        ("trace generate t.csv --isl 4", "not a flag of `servecast trace generate`. Did you mean --prompt-tokens?"),
        ("--verson", "--verson is not a flag of `servecast`. Did you mean --version?"),
        (
            f"{SIMULATE} -- vllm serve Llama-3.1-8B --limit 3",
            "--limit is Servecast's and not vLLM's; give it before `--`",
        ),
    ],
)
def test_an_unknown_flag_is_one_sentence_that_helps(call: str, said: str, servecast: Servecast) -> None:
    """One like it, the command that has it, or where the flags are listed."""
    status, out, err = servecast(*call.split())
    assert (status, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("calibrate runs.json", "Missing option '--gpu', and also '--out'."),
        ("simulate M", "Missing option '--gpu', and also '--trace'."),
        ("simulate M --gpu=l4", "Missing option '--trace'."),
    ],
)
def test_all_missing_options_are_named_at_once(call: str, said: str, servecast: Servecast) -> None:
    """And help needs none of them."""
    status, _, err = servecast(*call.split())
    assert (status, err) == (2, f"servecast: error: {said}\n")
    assert servecast(call.split(maxsplit=1)[0], "--help").status == 0


def test_every_meaning_is_of_a_flag_that_there_is() -> None:
    """A flag that was renamed takes its other names along."""
    known = {*known_flags(), *(flag for _, flags in _commands() for flag in flags)}
    assert {f"--{flag}" for flag in MEANINGS} <= known
