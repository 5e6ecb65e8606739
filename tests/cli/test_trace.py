"""`servecast trace`: inspect, convert and generate."""

import gzip
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sim.cli.trace import app
from sim.errors import ConfigError, TraceError
from sim.workload.readers import read_trace
from tests.cli.conftest import Servecast


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_inspect_prints_one_json_object() -> None:
    """`--json` is one object and nothing else."""
    figures = json.loads(run("inspect", "chat", "--json").stdout)
    assert (figures["num_requests"], figures["format"]) == (1000, "native")
    assert figures["mean_rate_rps"] == pytest.approx(5.0, rel=0.01)


def test_inspect_prints_a_table() -> None:
    """Counts, rates, lengths; prefixes and sessions where the trace has them."""
    text = run("inspect", "multi-turn", "--limit", "100").stdout
    assert "Requests:                 100\n" in text
    assert "Repeated prompt tokens:" in text
    assert "Sessions:" in text
    assert "Repeated prompt tokens:" not in run("inspect", "chat").stdout


def test_inspect_looks_closer(tmp_path: Path) -> None:
    """What caches of several sizes find, sessions, and a figure, the same bytes each time; never over what is read."""
    figures = json.loads(
        run("inspect", "multi-turn", "--json", "--out", tmp_path / "a.png", "--report", tmp_path / "a.html").stdout
    )
    sizes = [(one["cache_tokens"], one["hit_rate"]) for one in figures["prefix_reuse"]["hit_rate_by_cache_size"]]
    assert sizes[-1] == (100_000, figures["max_prefix_cache_hit_rate"])
    assert figures["sessions"]["mean_turns"] == 400 / 105
    assert sum(figures["requests_by_minute"].values()) == 400
    run("inspect", "multi-turn", "--out", tmp_path / "b.png")
    assert "Hit rate of an LRU prefix cache" in (tmp_path / "a.html").read_text()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with pytest.raises(ConfigError, match=r"^--out .* would overwrite what is read"):
        run("inspect", tmp_path / "a.png", "--out", tmp_path / "a.png")


def test_inspect_doubles_the_rate() -> None:
    """`--rate-scale 2` halves the duration."""
    plain, doubled = (
        json.loads(run("inspect", "chat", "--json", "--rate-scale", scale).stdout) for scale in ("1", "2")
    )
    assert doubled["duration_s"] == pytest.approx(plain["duration_s"] / 2)


def test_convert_keeps_the_requests(tmp_path: Path) -> None:
    """Azure in, native out; figures on stdout, talk on stderr."""
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,374,44\n2023-11-16 18:15:47.0,1,2\n"
    )
    result = run("convert", azure, tmp_path / "native.jsonl", "--json")
    assert json.loads(result.stdout)["output_tokens"]["total"] == 46
    assert result.stderr == f"Wrote 2 requests to {tmp_path / 'native.jsonl'}.\n"
    assert read_trace(tmp_path / "native.jsonl").arrival_s.tolist() == [0.0, 0.5]


def test_generate_starts_from_a_profile_and_takes_flags(tmp_path: Path) -> None:
    """Flags win over the profile; the same seed writes the same file."""
    flags = [
        "--profile",
        "chatbot",
        "-n",
        "20",
        "--output-tokens",
        "uniform:5,6",
        "--prefix-tokens",
        "32",
        "--seed",
        "3",
    ]
    run("generate", tmp_path / "a.csv", *flags)
    run("generate", tmp_path / "b.csv", *flags)
    trace = read_trace(tmp_path / "a.csv")
    assert len(trace) == 20
    assert set(trace.output_tokens.tolist()) == {5, 6}
    assert set(trace.prompt_tokens.tolist()) <= {384 + 32, 768 + 32, 1536 + 32}
    assert trace.arrival_s[-1] == 20 / 100
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_generate_takes_an_arrival_process(tmp_path: Path) -> None:
    """By name, with its options; --burstiness is that of gamma."""
    flags = ("-n", "4", "--rate", "2", "--seed", "3")
    run("generate", tmp_path / "even.csv", *flags, "--arrivals", "constant")
    assert read_trace(tmp_path / "even.csv").arrival_s.tolist() == [0.5, 1.0, 1.5, 2.0]
    run("generate", tmp_path / "a.csv", *flags, "--arrivals", "gamma:0.5")
    run("generate", tmp_path / "b.csv", *flags, "--burstiness", "0.5")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    with pytest.raises(ConfigError, match=r"^--burstiness 0\.5 is --arrivals gamma:0\.5; leave one of them out"):
        run("generate", tmp_path / "c.csv", "--burstiness", "0.5", "--arrivals", "constant")


def test_slices_put_together_are_the_trace_again(tmp_path: Path) -> None:
    """Of requests that come on one clock; what becomes of sessions is said."""
    for name, *bounds in (("a.jsonl", "--to-s", "100"), ("b.jsonl", "--from-s", "100")):
        said = run("slice", "multi-turn", tmp_path / name, *bounds).stderr
        assert "sessions are cut: their turns beyond the slice are not there.\n" in said
    run("merge", tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "both.jsonl")
    both, whole = read_trace(tmp_path / "both.jsonl"), read_trace("multi-turn")
    assert both.arrival_s.tolist() == whole.arrival_s.tolist()
    assert [name.split("-")[0] for name in both.request_id] == list(whole.request_id)
    kept = run("slice", "multi-turn", tmp_path / "c.jsonl", "--to-s", "100", "--whole-sessions").stderr
    assert "sessions are kept whole" in kept


def test_anonymise_writes_the_same_for_the_same_seed(tmp_path: Path) -> None:
    """And lengths in multiples, where asked."""
    for name, seed in (("a.csv", "1"), ("b.csv", "1"), ("c.csv", "2")):
        run("anonymise", "multi-turn", tmp_path / name, "--seed", seed)
    first, again, other = ((tmp_path / f"{name}.csv").read_bytes() for name in "abc")
    assert first == again != other
    run("anonymise", "chat", tmp_path / "d.csv", "--round-tokens", "100")
    assert not (read_trace(tmp_path / "d.csv").prompt_tokens % 100).any()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("slice", "chat", "new.csv"), r"^a slice has --from-s, --to-s or --limit, got none; "),
        (("merge", "new.csv"), r"^traces are merged into a file, got new\.csv alone; "),
        (("merge", "new.csv", "chat", "./new.csv"), r"^FILE new\.csv would overwrite what is read"),
        (("anonymise", "new.csv", "./new.csv"), r"^FILE new\.csv would overwrite what is read"),
        (("slice", "new.csv", "./new.csv", "--limit", "1"), r"^FILE new\.csv would overwrite what is read"),
    ],
)
def test_rewriting_needs_a_part_and_a_place(
    arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written over what is read."""
    monkeypatch.chdir(tmp_path)
    Path("new.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,6\n")
    with pytest.raises(ConfigError, match=said):
        run(*arguments)
    assert Path("new.csv").read_text().endswith("0,5,6\n")


def test_bad_input_is_left_to_the_entry_point(tmp_path: Path) -> None:
    """Commands raise the sentences that `servecast` prints before it exits with status 2."""
    with pytest.raises(TraceError, match="there is no such file"):
        run("inspect", tmp_path / "none.csv")
    with pytest.raises(ConfigError, match="is unknown"):
        run("generate", tmp_path / "t.csv", "--profile", "nope")


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_trace_comes_on_standard_input(pack: Callable[[bytes], bytes], trace: Path, servecast: Servecast) -> None:
    """Told by its content, compressed or not; the same figures as the file's."""
    command = ["simulate", "Llama-3.1-8B", "--json", "--gpu", "h100-sxm", "--trace"]
    process = [sys.executable, "-c", "from sim.cli import main; main()"]
    piped = subprocess.run(
        [*process, *command, "-"], input=pack(trace.read_bytes()), capture_output=True, check=True
    ).stdout
    there, here = json.loads(servecast(*command, trace).out), json.loads(piped)
    assert here["trace"] == "stdin"
    apart = dict.fromkeys(["trace", "arguments", "wall_time_s"])
    assert here | apart == there | apart


@pytest.mark.parametrize(
    ("redirection", "said"), [("</dev/null", "stdin: the file is empty"), ("<&-", "stdin is closed")]
)
def test_nothing_on_standard_input_is_one_sentence(redirection: str, said: str) -> None:
    """Empty, or closed."""
    line = f"{shlex.quote(sys.executable)} -c 'from sim.cli import main; main()' trace inspect - {redirection}"
    call = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (call.returncode, call.stdout) == (2, "")
    assert call.stderr.startswith(f"servecast: error: {said}")
    assert call.stderr.count("\n") == 1


def test_what_a_benchmark_leaves_open_is_said(tmp_path: Path, servecast: Servecast) -> None:
    """On stderr, beside the figures."""
    bench = tmp_path / "bench.json"
    bench.write_text('{"num_prompts": 2, "request_rate": "inf", "input_lens": [5, 6], "output_lens": [7, 8]}')
    status, out, err = servecast("trace", "inspect", bench, "--json")
    assert (status, json.loads(out)["format"]) == (0, "vllm bench")
    assert "requests come all at once; what prompts share is not recorded" in err
    simulated = servecast("simulate", "Llama-3.1-8B", "--gpu", "h100-sxm", "--trace", bench)
    assert "requests come all at once; what prompts share is not recorded" in simulated.err
