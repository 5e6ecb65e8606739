"""Reading a model's configuration through `transformers`: from a folder, a file or the hub, never running remote code."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.errors import ModelError
from sim.specs.hf_config import HFConfig

CONFIG_FILE = "config.json"
MODELOPT_FILE = "hf_quant_config.json"  # where modelopt checkpoints describe their quantisation


def read_local_config(path: Path) -> HFConfig:
    """The config of a checkpoint folder or a config.json; raises ModelError with the file and what is wrong in it."""
    file = path / CONFIG_FILE if path.is_dir() else path
    if not file.is_file():
        raise ModelError(
            f"{path} holds no {CONFIG_FILE}; give a folder with a model's {CONFIG_FILE}, or the file itself."
        )
    values = _parse(file)
    quantization = file.parent / MODELOPT_FILE
    if quantization.is_file():
        values = _with_modelopt(values, _parse(quantization))
    return HFConfig(_with_defaults(values, str(file)), str(file))


def read_hub_config(model: str, hint: str) -> HFConfig:
    """The config of a hub id, from the local cache or the network; raises ModelError, ending in `hint`, where neither has it."""
    from transformers import PretrainedConfig

    try:
        values, _ = PretrainedConfig.get_config_dict(model)
    except OSError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ModelError(
            f"The model {model!r} is not in the catalogue, and the hub gave no config: {reason}.{hint}"
        ) from None
    try:
        quantization, _ = PretrainedConfig.get_config_dict(model, _configuration_file=MODELOPT_FILE)
    except OSError:  # most checkpoints have none
        quantization = {}
    return HFConfig(_with_defaults(_with_modelopt(values, quantization), model), f"{model} ({CONFIG_FILE})")


def _parse(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ModelError(f"{file}, line {error.lineno}, column {error.colno}: no valid JSON ({error.msg}).") from None
    except UnicodeDecodeError:
        raise ModelError(f"{file} is no text file; a {CONFIG_FILE} in UTF-8 is wanted.") from None
    except (OSError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read: {error}.") from None
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
    from transformers import AutoConfig

    try:
        defaults = AutoConfig.from_pretrained(location, trust_remote_code=False).to_dict()
    except Exception:  # noqa: BLE001 - unknown type, remote code or a value that the class rejects: our reader judges it
        return values
    return _overlay(defaults, values)


def _overlay(defaults: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**defaults, **values}
    for key in ("text_config", "llm_config", "language_config"):
        if isinstance(defaults.get(key), Mapping) and isinstance(values.get(key), Mapping):
            merged[key] = {**defaults[key], **values[key]}
    return merged
