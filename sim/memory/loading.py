"""Which parts of a checkpoint are loaded: with or without a vision tower and the layers for multi-token prediction."""

from dataclasses import replace

from sim.errors import ConfigError
from sim.specs.model import Layer, Linear, ModelSpec

NORMS_PER_PREDICTION_LAYER = 3  # of the last hidden state, of the next token's embedding, before the shared head


def text_only(model: ModelSpec) -> ModelSpec:
    """Without the vision tower, as `--language-model-only` loads it."""
    return replace(model, num_vision_parameters=0)


def with_prediction_layers(model: ModelSpec) -> ModelSpec:
    """With the layers that `--speculative-config` of method mtp loads; they share embedding and head with the model.

    Each is another layer of the last kind, behind a projection of hidden state and next embedding into one (DeepSeek-V3's
    technical report, section 2.2). Raises ConfigError for a model that has none.
    """
    if not model.num_prediction_layers:
        raise ConfigError(f"{model.name} has no layers for multi-token prediction; leave --mtp out.")
    layers = (*model.layers, *[_prediction_layer(model)] * model.num_prediction_layers)
    return replace(model, layers=layers, num_prediction_layers=0)


def _prediction_layer(model: ModelSpec) -> Layer:
    last, hidden = model.layers[-1], model.hidden_size
    projection = Linear("eh_proj", 2 * hidden, hidden, "replicated")
    norms = NORMS_PER_PREDICTION_LAYER * hidden
    return replace(last, linears=(projection, *last.linears), num_other_parameters=last.num_other_parameters + norms)
