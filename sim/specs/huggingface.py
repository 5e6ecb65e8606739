"""Reading a model's configuration through `transformers`: from a folder, a file or the hub, never running remote code."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sim.errors import ModelError
from sim.inputs import is_there, read_json
from sim.specs.hf_config import HFConfig
from sim.units import MIB

CONFIG_FILE = "config.json"
MODELOPT_FILE = "hf_quant_config.json"  # where modelopt checkpoints describe their quantisation
HUB_TIMEOUT_S = 10.0
MAX_CONFIG_BYTES = 16 * MIB  # the longest lists of modules that are left in 16 bits take some hundred KB
PARTS = ("text_config", "llm_config", "language_config", "vision_config")


def read_local_config(path: Path) -> HFConfig:
    """The config of a checkpoint folder or a config.json; raises ModelError with the file and what is wrong in it."""
    file = path / CONFIG_FILE if is_there(path, Path.is_dir) else path
    if not is_there(file, Path.is_file):
        raise ModelError(
            f"{path} holds no {CONFIG_FILE}; give a folder with a model's {CONFIG_FILE}, or the file itself."
        )
    values = _parse(file)
    quantization = file.parent / MODELOPT_FILE
    if is_there(quantization, Path.is_file):
        values = _with_modelopt(values, _parse(quantization))
    return HFConfig(_with_defaults(values, str(file)), str(file))


def read_hub_config(model: str, hint: str) -> HFConfig:
    """The config of a hub id, from the local cache or the network; raises ModelError, ending in `hint`, where neither has it."""
    try:
        values = _hub_file(model, CONFIG_FILE)
    except Exception as error:  # noqa: BLE001 - no network, no such repository, a gated one: whatever the client raises
        reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
        raise ModelError(
            f"The model {model!r} is not in the catalogue, and huggingface.co gave no {CONFIG_FILE}: {reason}.{hint}"
        ) from None
    with suppress(Exception):  # most checkpoints have none
        values = _with_modelopt(values, _hub_file(model, MODELOPT_FILE))
    return HFConfig(_with_defaults(values, model), f"{CONFIG_FILE} of {model}")


def _hub_file(model: str, file: str) -> dict[str, Any]:
    """Asks once before it downloads, as the download itself would go on trying for 20 s without a network."""
    with quiet_transformers():
        from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
        from transformers import PretrainedConfig

        if not isinstance(try_to_load_from_cache(model, file), str):
            get_hf_file_metadata(hf_hub_url(model, file), timeout=HUB_TIMEOUT_S)
        values, _ = PretrainedConfig.get_config_dict(model, _configuration_file=file)
    return dict(values)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """transformers warns at import that PyTorch is missing, and of rope settings that are not our concern."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        yield
    finally:
        logging.disable(before)


def _parse(file: Path) -> dict[str, Any]:
    values = read_json(file, ModelError, most_bytes=MAX_CONFIG_BYTES)
    if not isinstance(values, dict):
        raise ModelError(f"{file} must hold one JSON object with a model's keys, got a {type(values).__name__}.")
    return values


def _with_modelopt(values: dict[str, Any], modelopt: Mapping[str, Any]) -> dict[str, Any]:
    """A quantization_config in config.json has the last word, as in vLLM."""
    quantization = modelopt.get("quantization")
    if not isinstance(quantization, Mapping) or values.get("quantization_config"):
        return values
    return {**values, "quantization_config": {"quant_method": "modelopt", **quantization}}


def _with_defaults(values: dict[str, Any], location: str) -> dict[str, Any]:
    """The config with what transformers' class for its model_type adds; as it stands where there is no such class."""
    try:
        with quiet_transformers():
            from transformers import AutoConfig

            defaults = AutoConfig.from_pretrained(location, trust_remote_code=False).to_dict()
    except Exception:  # noqa: BLE001 - unknown type, remote code or a value that the class rejects: our reader judges it
        return values
    return _overlay(defaults, values)


def _overlay(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Key by key, nested parts too; a part that the config leaves out stays out."""
    parts = {key: default for key, default in defaults.items() if key in PARTS and isinstance(default, Mapping)}
    merged = {key: value for key, value in defaults.items() if key not in parts} | dict(values)
    for key, part in parts.items():
        if isinstance(values.get(key), Mapping):
            merged[key] = {**part, **values[key]}
    return merged
