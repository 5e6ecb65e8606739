"""What of a checkpoint is loaded."""

from dataclasses import replace

from sim.specs.model import ModelSpec


def text_only(model: ModelSpec) -> ModelSpec:
    """Without the vision tower, as `--language-model-only` loads it."""
    return replace(model, num_vision_parameters=0)
