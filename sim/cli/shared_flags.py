"""Flags that `simulate`, `optimize` and `capacity` share: declared once, and handed to each as one object."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, get_type_hints

from sim.cli.client_flags import Clock, MaxConcurrency, OpenLoop
from sim.cli.engine_flags import chosen_model
from sim.cli.options import (
    Acceptance,
    Columns,
    ExpertRouting,
    Gpu,
    HowSampled,
    HowTimed,
    Intervals,
    Json,
    Limit,
    Model,
    Price,
    Slos,
    StepTimes,
    Trace,
    given_stream,
    given_trace,
    model_files,
    parsed_acceptance,
    priced,
    warn,
)
from sim.errors import ConfigError
from sim.outputs import check_apart
from sim.specs.serve_command import ParsedServe


@dataclass(frozen=True, kw_only=True)
class SharedFlags:
    """A deployment, its load and limits, and how its steps are timed; the fields are the flags."""

    model: Model = None
    gpu: Gpu
    price: Price = None
    trace: Trace
    columns: Columns = None
    limit: Limit = None
    max_concurrency: MaxConcurrency = None
    open_loop: OpenLoop = False
    clock: Clock = "engine"
    slo: Slos = None
    step_time_model: StepTimes = None
    composition: HowTimed = None
    sampling: HowSampled = None
    expert_routing: ExpertRouting = None
    acceptance: Acceptance = None
    intervals: Intervals = True
    as_json: Json = False

    def arguments(
        self,
        parsed: ParsedServe,
        outputs: Mapping[str, Path | None],
        *inputs: Path | None,
        seed: int = 0,
        stream: bool = False,
    ) -> dict[str, Any]:
        """The arguments that `sim.simulate`, `sim.optimize` and `sim.capacity` share; notes on them go to stderr.

        Raises ConfigError for a choice without effect, and for an output in the place of another or of an input.
        """
        self._check_choices()
        read = (*model_files(self.model), self.trace, self.gpu, self.step_time_model, *parsed.files, *inputs)
        check_apart(outputs, read)
        warn(parsed.warnings)
        return {
            "model": chosen_model(self.model, parsed),
            "gpu": priced(self.gpu, self.price),
            "trace": (given_stream if stream else given_trace)(self.trace, self.limit, seed, self.columns),
            "engine": parsed.engine,
            "vllm_version": parsed.vllm_version,
            "limit": self.limit,
            "max_concurrency": self.max_concurrency,
            "open_loop": self.open_loop,
            "clock": self.clock,
            "slo": self.slo or (),
            "step_time_model": self.step_time_model,
            "acceptance": parsed_acceptance(self.acceptance),
            "intervals": self.intervals,
            **self._choices,
        }

    @property
    def _choices(self) -> dict[str, str]:
        """The options of the roofline that are given."""
        names = ("composition", "sampling", "expert_routing")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def _check_choices(self) -> None:
        for name in self._choices if self.step_time_model else ():
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} changes nothing with --step-time-model; leave one of them out.")


def with_shared_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for each field of its parameters that are dataclasses; they are called with the objects."""
    parameters = signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation for parameter in parameters if is_dataclass(parameter.annotation)
    }

    @wraps(command)
    def flat(**values: Any) -> None:
        made = {
            name: group(**{one.name: values.pop(one.name) for one in fields(group)}) for name, group in groups.items()
        }
        command(**made, **values)

    flags = [flag for one in parameters for flag in (_flags(one.annotation) if one.name in groups else (one,))]
    flat.__signature__ = Signature(flags)  # type: ignore[attr-defined]
    flat.__annotations__ = {flag.name: flag.annotation for flag in flags}
    return flat


def _flags(group: type) -> Iterator[Parameter]:
    """Its fields as parameters that can be given by name alone; a required one has no default."""
    defaults = signature(group).parameters
    for name, annotation in get_type_hints(group, include_extras=True).items():
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name].default, annotation=annotation)
