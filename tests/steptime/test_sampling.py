"""From hidden states to tokens: head, gathering, sampler, and truncation where a checkpoint asks for it."""

from dataclasses import replace

import pytest

from sim.specs.hardware import load_gpu
from sim.specs.quantization import NVFP4
from sim.specs.sampling import truncation
from sim.steptime.links import all_gather_s
from sim.steptime.operators import gemm, gemm_s
from sim.steptime.sampling import SamplingWork
from tests.steptime.makers import h100, make_model


def test_logits_are_gathered_and_sampled() -> None:
    """On four GPUs: a quarter of the head each, all logits to all, and a sampler over the whole vocabulary."""
    work, gpu = SamplingWork(make_model(), h100(), 4, None), h100()
    head = make_model().output_head.per_rank(4)
    sampler_s = 10 * 2.3e-6 + 8 * 16 * 128256 / (0.5 * 3.35e12)
    expected = gemm_s(16.0, head, gpu) + all_gather_s(2.0 * 16 * 128256, 4, gpu) + sampler_s
    assert work.seconds(16) == pytest.approx(expected)
    assert work.seconds(0) == 0


def test_tied_embeddings_still_turn_rows_into_logits() -> None:
    """A model without an lm_head of its own multiplies by its embedding."""
    untied, tied = make_model(), make_model(lm_head=None)
    assert SamplingWork(tied, h100(), 1, None).seconds(1) == SamplingWork(untied, h100(), 1, None).seconds(1)


def test_a_head_of_4_bits_has_its_inputs_quantised() -> None:
    """By a kernel of its own on B200, as every matrix there has."""
    gpu, plain = load_gpu("b200-sxm"), make_model()
    head = replace(plain.output_head, weight=NVFP4)
    bare = gemm(4.0, head, gpu)
    bound, seconds = SamplingWork(replace(plain, lm_head=head), gpu, 1, None).kernels(4)[0]
    assert bound == bare.bound
    assert seconds == pytest.approx(bare.seconds + 2.3e-6)


def test_sorting_costs_by_rows_and_vocabulary() -> None:
    """A row's 128,256 entries one after the other, and bytes for each of 32 x 128,256 logits."""
    plain, sorting = (SamplingWork(make_model(), h100(), 1, how).seconds(32) for how in (None, "sort"))
    fit = h100().operators.sampler
    assert sorting - plain == pytest.approx(128256 * (fit.sort_entry_s + fit.sort_bytes_per_logit * 32 / 3.35e12))


def test_later_kernels_do_not_sort() -> None:
    """For 128 rows of 131,072 logits: 0.53 ms by Triton and 0.14 ms by FlashInfer, as measured; sorting takes longer."""
    model = make_model(vocab_size=131072)
    plain, triton, flashinfer, sort = (
        SamplingWork(model, h100(), 1, how).seconds(128) for how in (None, "triton", "flashinfer", "sort")
    )
    assert triton - plain == pytest.approx(0.53e-3, rel=0.2)
    assert flashinfer - plain == pytest.approx(0.14e-3, rel=0.2)
    assert sort > triton


@pytest.mark.parametrize(
    ("model", "version", "expected"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "0.15.1", "sort"),
        ("meta-llama/Llama-3.1-8B-Instruct", "0.19.0", "triton"),
        ("Qwen3-14B", "0.21.0", "flashinfer"),
        ("codellama/CodeLlama-34b-Instruct-hf", "0.15.1", None),
        ("mistralai/Mixtral-8x7B-v0.1", "0.15.1", None),
        ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", "0.15.1", "sort"),
    ],
)
def test_what_checkpoints_ask_for(model: str, version: str, expected: str | None) -> None:
    """Top-p from generation_config.json is served by a sort at first, by kernels in later versions."""
    assert truncation(model, version) == expected


def test_greedy_requests_are_not_truncated() -> None:
    """A request with temperature 0 needs the largest logit only."""
    assert truncation("meta-llama/Llama-3.1-8B-Instruct", "0.15.1", "greedy") is None
