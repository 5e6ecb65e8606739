"""vLLM's flags on a command of Servecast."""

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from sim.cli.engine_flags import EngineCommand, chosen_model, engine_flags
from sim.errors import ConfigError
from sim.specs.serve_command import serve_command
from sim.specs.serve_flags import ENGINE_FLAGS

app = typer.Typer()


@app.command(cls=EngineCommand)
def command(
    ctx: typer.Context,
    model: Annotated[str | None, typer.Argument()] = None,
    gpu: Annotated[str, typer.Option()] = "l4",
    seed: Annotated[int, typer.Option()] = 0,
) -> None:
    """Say what was understood."""
    parsed = engine_flags(ctx)
    typer.echo(f"{gpu} {seed} {serve_command(chosen_model(model, parsed), parsed.engine)}")
    for warning in parsed.warnings:
        typer.echo(warning)


def run(*args: str) -> str:
    result = CliRunner().invoke(app, list(args), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.strip()


@pytest.mark.parametrize(
    "args",
    [
        ("M", "--gpu", "h100", "-tp", "2", "--max-num-seqs", "64"),
        ("--max-num-seqs", "64", "-tp=2", "M", "--gpu=h100"),
        ("--gpu", "h100", "--max_num_seqs=64", "--tensor-parallel-size", "2", "--model", "M"),
        ("--gpu", "h100", "--", "vllm", "serve", "M", "--max-num-seqs", "64", "-tp", "2"),
        ("M", "--gpu", "h100", "-tp", "2", "--", "vllm", "serve", "M", "--max-num-seqs", "64"),
    ],
)
def test_engine_flags_stand_anywhere(args: tuple[str, ...]) -> None:
    """Before or after the model and the command's own options, or in a pasted line behind two dashes."""
    assert run(*args) == "h100 0 vllm serve M --tensor-parallel-size 2 --max-num-seqs 64"


def test_flags_beside_a_pasted_line_win() -> None:
    """So that one thing can be varied; a name that both have means the command's own before the dashes."""
    lines = run("--seed", "3", "--max-num-seqs", "8", "--", "vllm", "serve", "M", "--max-num-seqs", "4", "--seed", "5")
    assert lines.splitlines() == ["l4 3 vllm serve M --max-num-seqs 8", "--seed changes nothing here."]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("M", "--max-num-seq", "8"),
            r"^--max-num-seq is not a flag of `command` or of vllm serve\. Did you mean --max-num-seqs",
        ),
        (("M", "--gpy", "l4"), r"^--gpy is not a flag of `command` or of vllm serve\. Did you mean --gpu"),
        (("M", "--enable-elastic-ep"), r"^--enable-elastic-ep asks for expert parallelism, which is not simulated"),
        (("M", "--", "vllm", "serve", "N"), r"^Two models are given, 'M' and 'N'; leave one out"),
        (("M", "--", "--max-num-seqs", "8"), r"^A pasted command must hold `vllm serve MODEL \.\.\.`"),
        ((), r"^MODEL is missing; give a catalogue name"),
    ],
)
def test_bad_flags_are_refused(args: tuple[str, ...], message: str) -> None:
    """Each with its sentence; suggestions know the command's own options too."""
    with pytest.raises(ConfigError, match=message):
        run(*args)


def test_help_lists_every_engine_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the command's own options."""
    monkeypatch.setenv("COLUMNS", "160")
    text = run("--help")
    assert "Engine flags, as for vllm serve" in text
    assert all(name in text for name in ENGINE_FLAGS)
    assert "--[no-]enable-prefix-caching" in text
