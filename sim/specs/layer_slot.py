"""One layer being described: the config it is read from, its place in the stack and how its weights are quantised."""

from dataclasses import dataclass

from sim.specs.hf_config import HFConfig
from sim.specs.model import Linear, Split, WeightFormat
from sim.specs.quantization import Quantization
from sim.specs.traits import Traits


@dataclass(frozen=True, slots=True)
class Slot:
    """Layer `index` of the model that `config` describes."""

    config: HFConfig
    traits: Traits
    quantization: Quantization
    index: int

    @property
    def hidden_size(self) -> int:
        return self.config.size("hidden_size")

    def linear(
        self, name: str, module: str, in_features: int, out_features: int, split: Split, *, bias: bool = False
    ) -> Linear:
        """A fused matrix; `module` is the checkpoint's name of (one of) its parts, below the layer."""
        return Linear(name, in_features, out_features, split, bias, self.format_of(module))

    def format_of(self, module: str) -> WeightFormat:
        """How the checkpoint stores that module of this layer."""
        return self.quantization.format_of(f"model.layers.{self.index}.{module}")
