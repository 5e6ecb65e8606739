"""`load_model`: a ModelSpec from a catalogue name, a Hugging Face id, or a path to a folder or config.json."""

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sim.errors import ModelError, nearest
from sim.inputs import is_there
from sim.specs.architectures import build_model
from sim.specs.catalog import CatalogEntry, Match, find_model, read_catalog, short_name
from sim.specs.hf_config import HFConfig
from sim.specs.huggingface import read_hub_config, read_local_config
from sim.specs.model import ModelSpec
from sim.specs.online_quantization import quantize
from sim.specs.quantization_config import read_quantization

HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+")


class KnownModel(NamedTuple):
    """A row of `servecast models`: `attention` lists the kinds of its layers, `quantization` is None for 16-bit weights."""

    name: str
    aliases: tuple[str, ...]
    num_parameters: int
    num_active_parameters: int
    num_layers: int
    attention: tuple[str, ...]
    quantization: str | None
    max_model_len: int
    approximation: str | None


def load_model(model: str | Path, *, quantization: str | None = None) -> ModelSpec:
    """The model of that name, hub id, folder or config.json file.

    An existing path comes first, then the catalogue (no network), then the hub. `quantization` quantises 16-bit weights as
    vLLM's `--quantization` does, or names the precision of the checkpoint (fp8, fp4, int4). Raises ModelError for the
    model and ConfigError for the quantization.
    """
    path = Path(model).expanduser()
    if isinstance(model, Path) or is_there(path):
        return _build(read_local_config(path), _name_of(path.resolve()), quantization)
    if known := _of_catalog(model, quantization):
        return known
    hint = _nearest_names(model, read_catalog())
    if not HUB_ID.fullmatch(model):
        raise ModelError(f"The model {model!r} is neither in the catalogue nor a path that exists.{hint}")
    return _build(read_hub_config(model, hint), model, quantization)


def known_models() -> list[KnownModel]:
    """All models of the catalogue, in its order."""
    catalog = read_catalog()
    return [_known(entry, _from_catalog(Match(entry.name, entry), catalog, None)) for entry in catalog]


def _name_of(path: Path) -> str:
    """A folder's name, for its config.json too."""
    return path.parent.name if path.name == "config.json" else path.stem if is_there(path, Path.is_file) else path.name


@cache
def _of_catalog(name: str, quantization: str | None) -> ModelSpec | None:
    """Built once, however many candidates of a search are on it; None for a name that is not in the catalogue."""
    catalog = read_catalog()
    match = find_model(name, catalog)
    return _from_catalog(match, catalog, quantization) if match else None


def _from_catalog(match: Match, catalog: tuple[CatalogEntry, ...], quantization: str | None) -> ModelSpec:
    """The entry as asked for; where it names another checkpoint for that precision, that one."""
    checkpoint = match.entry.precisions.get(quantization or "")
    other = find_model(checkpoint, catalog) if checkpoint else None
    entry, wanted = (other.entry, None) if other else (match.entry, quantization)
    return _build(HFConfig(entry.config, entry.source), match.name, wanted)


def _build(config: HFConfig, name: str, quantization: str | None) -> ModelSpec:
    own = read_quantization(config)
    return build_model(config, name=name, quantization=quantize(own, quantization, model=name))


def _nearest_names(name: str, catalog: tuple[CatalogEntry, ...]) -> str:
    known = [alias for entry in catalog for alias in entry.names]
    return nearest(name, known if "/" in name else map(short_name, known))


def _known(entry: CatalogEntry, model: ModelSpec) -> KnownModel:
    kinds = dict.fromkeys(layer.attention.kind for layer in model.layers)
    return KnownModel(
        entry.name,
        entry.aliases,
        model.num_parameters,
        model.num_active_parameters,
        model.num_layers,
        tuple(kinds),
        model.quantization,
        model.max_model_len,
        model.approximation,
    )
