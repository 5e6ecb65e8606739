"""How steps are timed: the choices of the roofline, or step times that stand in its place."""

from pathlib import Path
from typing import Literal, NamedTuple, get_args

from sim.errors import check_choice
from sim.specs.acceptance import AcceptanceLike, checked_acceptance
from sim.specs.sampling import Sampling
from sim.steptime.expert_routing import ExpertRouting
from sim.steptime.linear import read_linear
from sim.steptime.protocol import StepTimeModel

Composition = Literal["additive", "two_pass", "max"]


class StepTimeOptions(NamedTuple):
    """`composition` times mixed steps, `sampling` is what clients ask of the sampler, `expert_routing` how tokens spread.

    Where step times are `given`, all three mean nothing; `source` is the file that they were read from. `acceptance` says how
    many drafts a step brings, whatever it takes.
    """

    composition: Composition = "additive"
    sampling: Sampling = "default"
    expert_routing: ExpertRouting = "skewed"
    given: StepTimeModel | None = None
    source: str | None = None
    acceptance: tuple[float, ...] | float | None = None

    def to_json(self) -> dict[str, str]:
        """What step times come from, as summaries say it."""
        accepted = {} if self.acceptance is None else {"acceptance": self._acceptance_text}
        if self.given is not None:
            return {"model": self.source or type(self.given).__name__, **accepted}
        choices = {"composition": self.composition, "sampling": self.sampling, "expert_routing": self.expert_routing}
        return {"model": "roofline", **choices, **accepted}

    @property
    def _acceptance_text(self) -> str:
        """As the command line takes it."""
        numbers = self.acceptance if isinstance(self.acceptance, tuple) else (self.acceptance,)
        return ",".join(f"{number:g}" for number in numbers)


DEFAULT_STEP_TIMES = StepTimeOptions()


def step_time_options(
    composition: Composition = "additive",
    sampling: Sampling = "default",
    expert_routing: ExpertRouting = "skewed",
    step_time_model: str | Path | StepTimeModel | None = None,
    acceptance: AcceptanceLike | None = None,
) -> StepTimeOptions:
    """The options, with the step times of a YAML file (`kind: linear`) read.

    Raises ConfigError for an unknown choice, ProfileError for an invalid file.
    """
    check_choice("composition", composition, get_args(Composition))
    check_choice("sampling", sampling, get_args(Sampling))
    check_choice("expert_routing", expert_routing, get_args(ExpertRouting))
    options = StepTimeOptions(composition, sampling, expert_routing, acceptance=checked_acceptance(acceptance))
    if isinstance(step_time_model, str | Path):
        return options._replace(given=read_linear(Path(step_time_model)), source=str(step_time_model))
    return options._replace(given=step_time_model)
