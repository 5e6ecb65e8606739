"""The autoscalers by name."""

from collections.abc import Mapping
from typing import Any

from sim.cluster.autoscaling.autoscaler import AutoscalerOptions
from sim.cluster.autoscaling.dynamo import DynamoPlannerOptions
from sim.cluster.autoscaling.hpa import HpaOptions
from sim.cluster.autoscaling.keda import KedaOptions, ProductionStackHpaOptions, ProductionStackOptions
from sim.cluster.autoscaling.llm_d import SloAwareOptions, WvaOptions
from sim.cluster.autoscaling.schedule import ScheduleOptions
from sim.cluster.options import chosen, named
from sim.errors import ConfigError

AUTOSCALERS: dict[str, type[AutoscalerOptions]] = {
    "hpa": HpaOptions,
    "keda": KedaOptions,
    "production_stack": ProductionStackOptions,
    "production_stack_hpa": ProductionStackHpaOptions,
    "llm_d_slo": SloAwareOptions,
    "llm_d_wva": WvaOptions,
    "dynamo": DynamoPlannerOptions,
    "schedule": ScheduleOptions,
}


def autoscaler_options(given: str | Mapping[str, Any]) -> AutoscalerOptions:
    """The autoscaler that was asked for, by name or with options; ConfigError for an unknown one or a broken rule."""
    found = chosen("autoscaler", AUTOSCALERS, given)
    if found.min > found.max:
        raise ConfigError(
            f"autoscaler {named('autoscaler', given).name}: min must be at most max, got {found.min} and {found.max}."
        )
    return found
