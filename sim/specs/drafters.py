"""What drafts: the model, head or layers that a speculative config names, as weights and layers.

Structures as in vLLM's model_executor/models: llama_eagle.py, llama_eagle3.py, deepseek_mtp.py, qwen3_dflash.py.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from sim.errors import ConfigError, ModelError
from sim.inputs import is_there
from sim.specs.huggingface import read_local_config
from sim.specs.model import Layer, Linear, ModelSpec
from sim.specs.models import load_model
from sim.specs.speculative_config import SpeculativeConfig

NORMS_PER_PREDICTION_LAYER = 3  # of the last hidden state, of the next token's embedding, before the shared head
EAGLE3_STATES = 3  # hidden states of a low, a middle and a high layer, joined into one (EAGLE-3, arXiv 2503.01840)
EAGLE3_VOCAB_SIZE = 32_000  # draft_vocab_size of yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
DFLASH_LAYERS = 5  # num_hidden_layers of z-lab/Qwen3-8B-DFlash-b16


@dataclass(frozen=True)
class Drafter:
    """`model` has the layers that are loaded for drafting, `num_layers_a_pass` of which one pass runs, then the `head`.

    What is not its own (embedding, head) is the target's. It reads what goes into the target's `tapped_layers` besides what comes
    out of the last. `assumed` says what was taken for a head whose config is not here.
    """

    model: ModelSpec
    head: Linear
    num_layers_a_pass: int
    owns_embedding: bool = False
    owns_head: bool = False
    assumed: str | None = None
    tapped_layers: tuple[int, ...] = ()

    @property
    def a_pass(self) -> ModelSpec:
        """The layers of one pass."""
        return replace(self.model, layers=self.model.layers[: self.num_layers_a_pass])


def drafter_of(config: SpeculativeConfig | None, target: ModelSpec) -> Drafter | None:
    """None where nothing but the text drafts. Raises SimError for a drafter that cannot be read."""
    method = config.chosen_method if config else "ngram"
    if config is None or method in {"ngram", "ngram_gpu"}:
        return None
    if method == "mtp" and config.model is None:
        layers = _prediction_layers(target)
        return Drafter(_with_layers(target, layers), target.output_head, 1)
    if method in {"draft_model", "mtp"}:
        model = load_model(str(config.model), quantization=config.quantization)
        return Drafter(model, model.output_head, model.num_layers, owns_embedding=True, owns_head=bool(model.lm_head))
    return _head(method, str(config.model), target)


def _prediction_layers(target: ModelSpec) -> tuple[Layer, ...]:
    """Each is another layer of the last kind, behind a projection of hidden state and next embedding into one.

    DeepSeek-V3's technical report, section 2.2.
    """
    last, hidden = target.layers[-1], target.hidden_size
    projection = Linear("eh_proj", 2 * hidden, hidden, "replicated")
    norms = NORMS_PER_PREDICTION_LAYER * hidden
    layer = replace(last, linears=(projection, *last.linears), num_other_parameters=last.num_other_parameters + norms)
    return (layer,) * target.num_prediction_layers


def with_prediction_layers(model: ModelSpec) -> ModelSpec:
    """With the layers for multi-token prediction, which share embedding and head with the model.

    Raises ConfigError for a model that has none.
    """
    if not model.num_prediction_layers:
        raise ConfigError(f"{model.name} has no layers for multi-token prediction; leave --mtp out.")
    return replace(model, layers=(*model.layers, *_prediction_layers(model)), num_prediction_layers=0)


def _with_layers(model: ModelSpec, layers: tuple[Layer, ...]) -> ModelSpec:
    return replace(model, layers=layers, num_prediction_layers=0, num_vision_parameters=0)


def _head(method: str, name: str, target: ModelSpec) -> Drafter:
    """An EAGLE or DFlash head: of its own config where that is here, else in the target's measures."""
    path = Path(name).expanduser()
    is_here = is_there(path)
    model = load_model(path) if is_here else _like(target, DFLASH_LAYERS if method == "dflash" else 1, name)
    hidden, states = target.hidden_size, {"eagle": 2, "eagle3": EAGLE3_STATES}.get(method, model.num_layers)
    join = Linear("fc", states * hidden, model.hidden_size, "replicated")
    first, *others = model.layers
    linears = tuple(_of_two_inputs(linear) for linear in first.linears) if method == "eagle3" else first.linears
    model = replace(model, layers=(replace(first, linears=(join, *linears)), *others), num_vision_parameters=0)
    assumed = None if is_here else f"{name} is taken as {_assumed(method)}; give a path to its config.json for its own"
    tapped = _tapped_layers(method, target.num_layers, model.num_layers)
    if method != "eagle3":
        return Drafter(model, target.output_head, model.num_layers, assumed=assumed, tapped_layers=tapped)
    vocab_size = read_local_config(path).count("draft_vocab_size") if is_here else EAGLE3_VOCAB_SIZE
    head = replace(target.output_head, in_features=model.hidden_size, out_features=vocab_size or model.vocab_size)
    return Drafter(model, head, model.num_layers, owns_head=True, assumed=assumed, tapped_layers=tapped)


def _tapped_layers(method: str, num_layers: int, num_states: int) -> tuple[int, ...]:
    """Of EAGLE-3 as vLLM's `get_eagle3_default_aux_hidden_state_layers`; of DFlash, whose config names them, at equal distances."""
    if method == "eagle3":
        return (2, num_layers // 2, num_layers - 3)
    return (
        tuple((2 * one + 1) * num_layers // (2 * num_states) for one in range(num_states)) if method == "dflash" else ()
    )


def _assumed(method: str) -> str:
    layers = f"{DFLASH_LAYERS} layers" if method == "dflash" else "one layer"
    vocabulary = f" and a head of {EAGLE3_VOCAB_SIZE:,} tokens" if method == "eagle3" else ""
    return f"{layers} in the model's own measures{vocabulary}"


def _of_two_inputs(linear: Linear) -> Linear:
    """EAGLE-3 projects queries, keys and values from a hidden state and an embedding side by side."""
    return replace(linear, in_features=2 * linear.in_features) if linear.name == "qkv_proj" else linear


def _like(target: ModelSpec, num_layers: int, name: str) -> ModelSpec:
    """Dense layers with the attention heads of the target's first layer with full attention."""
    layer = next((each for each in target.layers if each.attention.kind == "full" and not each.experts), None)
    if layer is None:
        raise ModelError(
            f"{name} cannot be taken for a layer of {target.name}, which has none that is dense with full attention; give"
            " the path of its config.json as `model`."
        )
    plain = replace(layer, linears=tuple(replace(linear, weight=target.embedding.weight) for linear in layer.linears))
    return _with_layers(target, (plain,) * num_layers)
