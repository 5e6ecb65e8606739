"""The horizontal pod autoscaler and KEDA, by worked examples."""

import pytest

from sim.cluster.autoscaling.autoscaler import Observed, Shown
from sim.cluster.autoscaling.behavior import Behavior
from sim.cluster.autoscaling.hpa import HpaOptions
from sim.cluster.autoscaling.keda import KedaOptions
from sim.cluster.autoscaling.table import autoscaler_options
from tests.cluster.autoscaling.makers import waiting


def asked(given: object, observed: Observed) -> int:
    return autoscaler_options(given).autoscaler().desired(observed)  # type: ignore[arg-type]


def test_the_pool_grows_by_the_share_of_the_target() -> None:
    """Ten wait at each of three where five should: six replicas."""
    assert asked("hpa:target=5", waiting(10, 10, 10)) == 6


@pytest.mark.parametrize(("count", "desired"), [(10, 2), (11, 2), (12, 3)])
def test_within_a_tenth_of_the_target_nothing_changes(count: int, desired: int) -> None:
    assert asked("hpa:target=10", waiting(count, count)) == desired


def test_replicas_that_start_count_as_idle_when_the_pool_grows() -> None:
    """20 wait at one of three: 1.33 targets a replica, so four are asked for, where one alone would ask for four times three."""
    assert asked("hpa:target=5", waiting(20, num_replicas=3)) == 4
    assert asked("hpa:target=5", waiting(9, num_replicas=3)) == 3


def test_a_target_for_the_whole_pool_is_a_value_or_an_average() -> None:
    """Six wait, also at the gateway: twice a value of 3, and three times an average of 2."""
    observed = waiting(2, 2, num_queued=2)
    assert asked("hpa:target=3,target_type=value", observed) == 4
    assert asked("hpa:target=2,target_type=average", observed) == 3


def test_kv_cache_usage_is_an_average() -> None:
    observed = Observed(0.0, 2, [Shown(0, 9, 0.9), Shown(0, 9, 0.7)])
    assert asked({"policy": "hpa", "metric": "kv_cache_usage", "target": 0.4}, observed) == 4


def test_no_more_than_double_or_four_pods_in_a_period() -> None:
    """From one: to five, then to ten in the next period, which `max` cuts to eight."""
    behavior = Behavior(HpaOptions())
    assert [behavior.limit(now_s, current, 40) for now_s, current in ((0, 1), (5, 5), (15, 5))] == [5, 5, 8]


def test_the_pool_shrinks_to_the_highest_of_five_minutes() -> None:
    behavior = Behavior(HpaOptions())
    wished = [(0.0, 6, 2), (100.0, 6, 3), (300.0, 6, 2), (400.0, 3, 2), (600.0, 3, 2)]
    assert [behavior.limit(*at) for at in wished] == [6, 6, 3, 2, 2]


def test_one_pod_in_two_minutes() -> None:
    options = HpaOptions(scale_down_window_s=0.0, scale_down_percent=0.0, scale_down_pods=1, scale_down_period_s=120.0)
    behavior = Behavior(options)
    assert [behavior.limit(now_s, current, 2) for now_s, current in ((15, 5), (30, 4), (120, 4), (135, 4))] == [
        4,
        4,
        4,
        3,
    ]


def test_scaling_up_waits_for_its_window() -> None:
    """The lowest recommendation of 30 s counts."""
    behavior = Behavior(HpaOptions(scale_up_window_s=30.0))
    assert [behavior.limit(now_s, 3, 6) for now_s in (0, 15, 30)] == [3, 3, 6]


def test_keda_leaves_none_when_anything_waits() -> None:
    keda = KedaOptions(min=0, target=5.0).autoscaler()
    assert keda.desired(waiting()) == 0
    assert keda.desired(waiting(num_queued=1, now_s=15.0)) == 0, "it polls every 30 s"
    assert keda.desired(waiting(num_queued=1, now_s=30.0)) == 1


def test_keda_goes_to_none_after_its_cooldown() -> None:
    keda = KedaOptions(min=0, target=5.0).autoscaler()
    times = (0, 30, 300, 330)
    assert [keda.desired(waiting(1 if at_s == 30 else 0, now_s=at_s)) for at_s in times] == [1, 1, 1, 0]


def test_keda_divides_the_total() -> None:
    """Twelve wait, five may: three replicas."""
    assert asked("keda:target=5", waiting(12)) == 3


def test_production_stack_has_two_replicas_at_most() -> None:
    assert asked("production_stack", waiting(30)) == 2
    assert asked("production_stack_hpa", waiting(2)) == 2
    assert asked("production_stack_hpa", waiting(1)) == 1
