"""Autoscalers of llm-d and Dynamo, and schedules, by worked examples."""

import pytest

from sim.cluster.autoscaling.autoscaler import Observed, Shown
from sim.cluster.autoscaling.dynamo import DynamoPlannerOptions
from sim.cluster.autoscaling.llm_d import TPOT_BUCKETS_S, SloAwareOptions, histogram_quantile, slo_wish
from sim.cluster.autoscaling.table import AUTOSCALERS, autoscaler_options
from sim.errors import ConfigError
from tests.cluster.autoscaling.makers import late, waiting


@pytest.mark.parametrize(
    ("saturation", "num_replicas", "num_ready", "desired"),
    [
        (1.1, 3, 3, 6),  # twice the upper bound of 0.55
        (1.1, 6, 3, 6),  # half of them start: credited
        (0.5, 4, 4, 4),  # within the band
        (0.2, 8, 8, 4),  # half of the lower bound of 0.40
        (0.39, 8, 8, 8),  # a step down is rounded to none
        (0.0, 3, 3, 0),
    ],
)
def test_the_law_of_the_slo_loop(saturation: float, num_replicas: int, num_ready: int, desired: int) -> None:
    assert slo_wish(saturation, num_replicas, num_ready, SloAwareOptions()) == desired


def test_the_slo_loop_averages_three_samples_and_waits_30_s() -> None:
    """Shares of 0.49 and 2 (clamped) of a limit: 0.99 on average; the lowest wish of two samples counts, and no policy holds it back."""
    loop = SloAwareOptions(min=10, max=30).autoscaler()
    ttfts_s = (1.5, 1.5, 1.5, 9.0, 9.0)
    found = [loop.desired(late(*[(ttft_s, 0.01)] * 10, now_s=15.0 * number)) for number, ttft_s in enumerate(ttfts_s)]
    assert found == [10, 10, 10, 10, 19]


def test_the_variant_autoscaler_asks_for_one_more_when_little_is_to_spare() -> None:
    for usage, queue, desired in ((0.75, 0, 3), (0.3, 3, 3), (0.9, 9, 3), (0.5, 1, 2), (0.1, 0, 1)):
        wva = autoscaler_options({"policy": "llm_d_wva", "scale_down_window_s": 0}).autoscaler()
        assert wva.desired(Observed(0.0, 2, [Shown(queue, 4, usage)] * 2)) == desired, (usage, queue)


def test_the_variant_autoscaler_waits_for_replicas_that_start() -> None:
    wva = autoscaler_options("llm_d_wva").autoscaler()
    assert wva.desired(Observed(0.0, 3, [Shown(9, 4, 0.9)])) == 3


@pytest.mark.parametrize(
    ("latencies", "desired"),
    [
        (((0.6, 0.01), (0.7, 0.01)), 3),  # TTFTs over 0.5 s
        (((0.1, 0.06), (0.1, 0.07)), 3),  # ITLs over 50 ms
        (((0.6, 0.01), (0.1, 0.07)), 2),  # each over one of them
        (((0.1, 0.01), (0.1, 0.02)), 1),  # both under 80 % of both
        (((0.45, 0.01), (0.1, 0.02)), 2),
    ],
)
def test_dynamo_takes_one_step_where_all_agree(latencies: tuple[tuple[float, float], ...], desired: int) -> None:
    assert DynamoPlannerOptions().autoscaler().desired(late(*latencies)) == desired


def test_dynamo_acts_once_at_a_time() -> None:
    planner = DynamoPlannerOptions().autoscaler()
    assert planner.desired(late((0.6, 0.1), num_replicas=2)) == 2
    assert planner.desired(late((0.1, 0.01), (0.1, 0.01))._replace(num_draining=1)) == 2


def test_dynamo_keeps_a_floor_by_demand() -> None:
    """In 180 s 720,000 prompt tokens at 1,000/s a replica: four; 360 answers of 500 tokens at 500/s: two."""
    planner = DynamoPlannerOptions(prefill_tokens_per_s=1000.0, decode_tokens_per_s=500.0).autoscaler()
    demand = late((0.1, 0.01))._replace(num_arrived=360, num_prompt_tokens=720_000, mean_output_tokens=500.0)
    assert planner.desired(demand._replace(now_s=175.0)) == 1
    assert planner.desired(demand._replace(now_s=180.0)) == 4


def test_a_schedule_repeats() -> None:
    office = {"policy": "schedule", "times": [[8, 4], [18, 1]], "period_s": 24}
    found = [
        autoscaler_options(office).autoscaler().desired(waiting(0, now_s=hour)) for hour in (0, 8, 17.9, 18, 32, 42)
    ]
    assert found == [1, 4, 4, 1, 4, 1]


@pytest.mark.parametrize("name", [name for name in AUTOSCALERS if name != "schedule"])
def test_a_name_is_enough(name: str) -> None:
    options = autoscaler_options(name)
    assert options == autoscaler_options({"policy": name})
    assert options.min <= options.autoscaler().desired(waiting(0, 0)) <= options.max


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("hpa:max=0", "autoscaler hpa: max must be an integer of at least 1 and of at most 512, got 0"),
        ("hpa:min=3,max=2", "autoscaler hpa: min must be at most max, got 3 and 2"),
        (
            "hpa:metric=cpu",
            "autoscaler hpa: metric must be one of waiting, running, in_flight, kv_cache_usage, got 'cpu'",
        ),
        ({"min": 1}, "autoscaler must have a `policy`, the name of an autoscaler"),
        ("kda", "autoscaler must be one of .*, got 'kda'. Did you mean keda"),
        ("schedule", "times must be pairs"),
        ({"policy": "schedule", "times": [[5, 1], [3, 2]]}, "in order of their seconds"),
        ({"policy": "schedule", "times": [[5, 1]], "period_s": 5}, "times must lie before period_s 5, got 5"),
    ],
)
def test_an_error_names_option_and_rule(given: object, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        autoscaler_options(given)  # type: ignore[arg-type]


def test_a_percentile_is_that_of_a_coarse_histogram() -> None:
    """All between 20 and 40 ms: nine tenths of the way; one of four above: the quantile lies in the upper bucket."""
    assert histogram_quantile([0.021, 0.022, 0.033], TPOT_BUCKETS_S, 0.9) == pytest.approx(0.038)
    assert histogram_quantile([0.03, 0.03, 0.03, 0.05], TPOT_BUCKETS_S, 0.9) == pytest.approx(0.04 + 0.02 * 0.6)
    assert histogram_quantile([1000.0], TPOT_BUCKETS_S, 0.9) == 360
