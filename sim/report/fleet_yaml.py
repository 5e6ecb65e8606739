"""A fleet file as text."""

from collections.abc import Mapping
from typing import Any

import yaml

WIDTH = 120


def fleet_yaml(fleet: Mapping[str, Any]) -> str:
    """The YAML that `--fleet` reads, a line a pool where there is room for it."""
    text: str = yaml.safe_dump(dict(fleet), sort_keys=False, width=WIDTH, allow_unicode=True, default_flow_style=None)
    return text
