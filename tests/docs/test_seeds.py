"""What docs/seeds.md and docs/quantization.md say in figures is so, and no sentence has a figure that nothing keeps.

A figure is printed by an example beside its sentence, which test_readme.py keeps; or quoted from a document; or among those below or, of
presets, in tests/specs/test_presets.py.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields

import pytest

import sim
from sim.engine.fair_share import ANSWER_TOKEN, PROMPT_TOKEN
from sim.specs.hardware import load_gpu
from sim.specs.kernels import NO_2_OF_4
from sim.specs.models import load_model
from sim.specs.releases import release_for
from sim.steptime.operators import MARLIN_ON_HOPPER
from tests.docs.seeds import NO_FIGURES, NUMBER, PAGES, PRESET_ROWS, number, numbers, passages, printed, quoted, said
from tests.shared import SHARED, needs_shared

SEEDS, QUANTIZATION = PAGES
Figures = tuple[float, ...]


def graphs() -> Figures:
    _, small, _, large = printed(SEEDS, r"^\{'Qwen3-([\d.]+)B': (\d+), .*'Qwen3-(\d+)B': (\d+)\}$")
    return small, round(large, -2)


def published_model() -> Figures:
    model = load_model("Qwen3-4B")
    documents = printed(SEEDS, r"num_heads=(\d+),\n[^)]*intermediate_size=(\d+)")
    return model.num_attention_heads, model.intermediate_size, *documents


def gain_over_static_batches() -> Figures:
    (continuous,) = printed(SEEDS, r"^as given +([\d,.]+) .*\nscheduling_ .*\npolicy=sjf")
    (static,) = printed(SEEDS, r"^batching= +([\d,.]+) ")
    return (round(100 * (continuous / static - 1)),)


def slots_of_a_pipeline() -> Figures:
    batches = stages = 4
    slots = batches + stages - 1
    return batches, slots, round(100 * batches / slots)


def first_tokens_of_conversations() -> Figures:
    found = printed("results.md", r"^as given +[\d,.]+ +([\d,.]+) .*\nenable_ +[\d,.]+ +([\d,.]+) .*\nprefix_")
    return tuple(round(figure) for figure in found)


def waits_of_launches() -> Figures:
    """With graphs and without, of a small model."""
    return printed(SEEDS, r"^\{'Qwen3-0.6B': \(([\d.]+), ([\d.]+)\), 'Llama-3.1-8B'")


def async_scheduling() -> Figures:
    """Since when there is such an argument, and since when it is the default."""
    (field,) = (one for one in fields(sim.EngineConfig) if one.name == "async_scheduling")
    first = field.metadata["argument"].since
    assert not release_for("0.13.0").async_scheduling
    assert release_for("0.14.0").async_scheduling
    return number(first.removesuffix(".0")), 0.14


def measured_on_hosts() -> Figures:
    text = (SHARED / "vllm/BEHAVIOUR.md").read_text(encoding="utf-8")
    (share,) = re.findall(r"scheduling\+input prep (\d+)%", text)
    (costs,) = re.findall(r"b~([\d.]+) \(schedule\) \+ ([\d.]+) us \(update\)", text)
    return number(share), *map(number, costs)


def integers_of_kimi() -> Figures:
    errors = printed(
        "accuracy.md", r"^\| Kimi-K2.5 \| int4 \| b200.*/ (\d+) \|\n\| Kimi-K2.5 \| int4 \| h200.*/ (\d+) \|$"
    )
    return (max(errors),)


KEPT: Mapping[str, Mapping[str, Callable[[], Figures]]] = {
    SEEDS: {
        r"vLLM (0\.33) captures": lambda: (number(release_for(None).version.removesuffix(".0")),),
        r"at (\d+) ms a token \(`assumed_tpot_s`\)": lambda: (1e3 * sim.AutotuningParameters().assumed_tpot_s,),
        r"says (\d+) times what they take for a small model and ([\d,]+) times for a large one": graphs,
        r"itself ends at ([\d,]+) tokens": lambda: (load_model("Qwen3-4B").max_model_len,),
        r"has (\d+) heads and ([\d,]+), not (\d+) and ([\d,]+)": published_model,
        r"\(above, (\d+) % more tokens a second\)": gain_over_static_batches,
        r"512 reserved for each, fill [\d.]+ % of ([\d,]+) tokens": lambda: (2 * 512,),
        r"GiB of host memory a GPU \((\d+)\)": lambda: (sim.EngineConfig().swap_space,),
        r"keep (\d+) of (\d+) slots busy, (\d+) %": slots_of_a_pipeline,
        r"long prompts: (\d+) for (\d+) ms in \[conversations\]": first_tokens_of_conversations,
        r"host's share\]\([^)]*\), ([\d.]+) ms of a step": lambda: (round(waits_of_launches()[0], 1),),
        r"up to ([\d.]+) ms where kernels are small": lambda: (round(waits_of_launches()[1], 1),),
        r"since (0\.\d+), the default since (0\.\d+)": async_scheduling,
    },
    QUANTIZATION: {
        r"prompts at (0\.\d+) of the peak at best: Marlin": lambda: (MARLIN_ON_HOPPER,),
        r"sparse tensor cores, up to vLLM (0\.\d+)": lambda: ((NO_2_OF_4[1] - 1) / 100,),
        r"\(Kimi\), whose time per token is within (\d+) % here": integers_of_kimi,
        r"less than half of the ([\d,]+) that 32 sequences of 2,048 take": lambda: (32 * 2048,),
    },
}
NEEDS_SHARED = {
    SEEDS: {
        r"in vLLM 0\.5 \(\[(\d+) % of a step\]\([^)]*\) for scheduling and inputs\); of 0\.33 .* takes ([\d.]+) µs .* in ([\d.]+), on a slow core": measured_on_hosts
    },
    QUANTIZATION: {},
}


@pytest.mark.parametrize(("page", "sentence"), [(page, sentence) for page in PAGES for sentence in KEPT[page]])
def test_a_sentence_says_what_is_so(page: str, sentence: str) -> None:
    """Read out of the page, and rounded as it stands there."""
    assert said(page, sentence) == pytest.approx(KEPT[page][sentence]())


@needs_shared
def test_what_hosts_take_is_what_was_measured() -> None:
    for sentence, expected in NEEDS_SHARED[SEEDS].items():
        assert said(SEEDS, sentence) == expected()


@needs_shared
@pytest.mark.parametrize("page", PAGES)
def test_the_documents_are_quoted_as_they_are(page: str) -> None:
    """Each figure between quotation marks stands in one of them."""
    documents = "\n".join(path.read_text(encoding="utf-8") for path in sorted((SHARED / "seeds").glob("*.txt")))
    assert set(quoted(page)) <= set(numbers(documents))


@pytest.mark.parametrize("page", PAGES)
def test_no_figure_is_kept_by_nothing(page: str) -> None:
    """What is left of the sentences is printed, or typed, in an example right beside them; shares of 1 there are per cent here."""
    kept = [*KEPT[page], *NEEDS_SHARED[page], *PRESET_ROWS.values()]
    left = []
    for text, examples in passages(page):
        for sentence in kept:
            text = re.sub(sentence, "", text)  # noqa: PLW2901 - less and less of it
        shown = {round(figure * times, 9) for figure in numbers(examples) for times in (1, 100)}
        found = NUMBER.findall(NO_FIGURES.sub("Q", text))
        left += [figure for figure in found if number(figure) not in shown]
    assert left == []


def test_shares_in_words() -> None:
    """What is about a fifth, a seventh, a quarter, a half, and twice."""
    _, activations = printed(SEEDS, r"^\(([\d.]+), ([\d.]+)\)\n>>> budget")
    assert activations == pytest.approx(1 / 5, abs=0.025)
    early = printed("accuracy.md", r"^\| Kimi-K2.5 \| int4 \| h200\S* \| \S+ \| 15 \| -(\d+) / ")
    assert early == pytest.approx((100 / 7,), abs=2)
    (whole,), (quarter,) = (
        printed(QUANTIZATION, rf"^{name} +[\d.]+ +[\d.]+ +([\d.]+) +[\d.]+ ") for name in ("fp16", "W4A16")
    )
    assert 1 / 4 < quarter / whole < 1 / 3
    a100 = load_gpu("a100-sxm-80gb").peak_flops
    assert a100["int8"] == 2 * a100["bf16"]
    plans = [
        sim.plan_memory("Llama-3.1-8B", "h100-sxm", engine=sim.EngineConfig(kv_cache_dtype=dtype))
        for dtype in ("auto", "fp8")
    ]
    assert 2 * plans[0].kv_cache_tokens == pytest.approx(plans[1].kv_cache_tokens, rel=0.001)
    assert (PROMPT_TOKEN, ANSWER_TOKEN) == (1, 2)


def test_numbers_in_words() -> None:
    """Seats that the specification's search makes, requests that decode beside each other, and who generates most."""
    optimizer = sim.vLLMConfigOptimizer("Llama-3.1-8B", sim.ClusterSpec("h100-sxm"))
    interactive = sim.WorkloadProfile.create_synthetic("interactive")
    model = optimizer.config({"gpu_memory_utilization": 0.98, "max_model_len": 1024, "cudagraph_capture_sizes": [1, 2]})
    assert optimizer.get_config_predictions(model, interactive)["recommended_max_num_seqs"] == 2
    for profile in (interactive, sim.WorkloadProfile.create_synthetic("chatbot", requests_per_second=10)):
        run = sim.simulate("Llama-3.1-8B", "h100-sxm", profile, limit=200, intervals=False)
        assert run.steps["num_decodes"].quantile(0.75) > 2 * 12
    layouts = printed(
        SEEDS, r"^\{\(8, 1, 1\): \((\d+), .* \(4, 1, 2\): \((\d+), .* \(2, 2, 2\): \((\d+), .* \(1, 1, 8\): \((\d+), "
    )
    assert max(layouts) == layouts[1]


def test_what_to_monitor_keeps_its_targets() -> None:
    """Means at low load, of the document's production arguments."""
    ttft_ms, tpot_ms = printed(SEEDS, r"^preset= +101[\d.]+ +([\d.]+) +[\d.]+ +([\d.]+) .*\nproduction")
    assert tpot_ms < 30 < ttft_ms < 500


def test_the_choice_of_a_format_follows_from_what_was_simulated() -> None:
    """One request at a time is best with four bits, long prompts on an A100 with eight both ways; bitsandbytes loses batches."""
    schemes = ("none", "W4A16", "W8A8", "fp8")
    few, prompts = (
        dict(zip(schemes, printed(QUANTIZATION, rf"^{row} +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$"), strict=True))
        for row in ("latency, on an H100: fp8", "products take long: W8A8")
    )
    assert max(few, key=few.__getitem__) == "W4A16"
    assert max(prompts, key=prompts.__getitem__) == "W8A8"
    slow, plain = (
        printed(QUANTIZATION, rf"^{name} +[\d.]+ +([\d.]+) +[\d.]+ +([\d.]+)$") for name in ("bitsandbytes", "bf16")
    )
    assert all(one < other for one, other in zip(slow, plain, strict=True))
