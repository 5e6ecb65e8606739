"""The named factors of a calibration, and a hardware profile with them applied."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from sim.outputs import writing
from sim.specs.hardware import HardwareProfile, hardware_profile
from sim.specs.hardware_file import HardwareFile

SCALED: Mapping[str, str] = {
    "compute_efficiency": "compute_efficiency",
    "memory_efficiency": "memory_efficiency",
    "launch_us": "launch_time",
    "layer_us": "host_step_time",
    "step_us": "host_step_time",
    "exposed_us": "host_step_time",
    "request_us": "host_request_time",
    "front_end_us": "front_end_time",
    "front_end_request_us": "front_end_time",
}
"""Numbers of a profile's operators, and the factor that scales each of them on every operator alike."""

SCALES = tuple(dict.fromkeys(SCALED.values()))
Values = dict[str, Any]


def scaled(values: Values, scales: Mapping[str, float]) -> Values:
    """The profile with each number of its operators multiplied by its factor."""
    result = copy.deepcopy(values)
    _scale(result["operators"], scales)
    return result


def profile(values: Values) -> HardwareProfile:
    """The profile that these values describe."""
    return hardware_profile(HardwareFile.model_validate(values))


def write_profile(path: Path, values: Values) -> None:
    """Raises ConfigError where it cannot be written."""
    text = yaml.safe_dump(values, sort_keys=False, width=120, allow_unicode=True)
    with writing(path) as file:
        file.write_text(f"# Written by servecast calibrate; `calibration` says from what.\n{text}", encoding="utf-8")


def _scale(block: Values, scales: Mapping[str, float]) -> None:
    for name, value in block.items():
        if isinstance(value, dict):
            _scale(value, scales)
        elif name in SCALED:
            block[name] = float(f"{value * scales[SCALED[name]]:.6g}")
