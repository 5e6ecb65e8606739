"""Architecture facts of popular models, so that no hub is needed: the keys of their config.json that Servecast reads.

Each JSON file holds a family: a list of entries with `name`, `aliases` (other checkpoints of the same shape), `source` and
`config`. An entry with `base` takes that entry's config and adds its own keys (a quantised checkpoint, a longer context).
`precisions` names the checkpoint to take when another weight format is asked for.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sim.errors import ModelError


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One shape of model under all its names; `config` in Hugging Face's keys."""

    name: str
    aliases: tuple[str, ...]
    source: str
    config: Mapping[str, Any]
    precisions: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


class Match(NamedTuple):
    """A catalogue entry and the one of its names that was asked for."""

    name: str
    entry: CatalogEntry


def read_catalog() -> tuple[CatalogEntry, ...]:
    """All entries, in order of file and place in it."""
    written = {entry["name"]: entry for entry in _written_entries()}
    return tuple(
        CatalogEntry(
            name,
            tuple(entry.get("aliases", ())),
            entry["source"],
            _config(entry, written),
            entry.get("precisions", {}),
        )
        for name, entry in written.items()
    )


def _written_entries() -> Iterator[Mapping[str, Any]]:
    for file in sorted(Path(__file__).parent.glob("*.json")):
        yield from json.loads(file.read_text(encoding="utf-8"))


def _config(entry: Mapping[str, Any], written: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    own: Mapping[str, Any] = entry.get("config", {})
    return {**_config(written[entry["base"]], written), **own} if "base" in entry else own


def find_model(name: str, catalog: tuple[CatalogEntry, ...]) -> Match | None:
    """The entry of that name, upper or lower case, with or without its organisation; None where there is none.

    Raises ModelError for a short name that different models share.
    """
    wanted = name.lower()
    full = [Match(known, entry) for entry in catalog for known in entry.names if known.lower() == wanted]
    short = [Match(known, entry) for entry in catalog for known in entry.names if short_name(known).lower() == wanted]
    matches = full or short
    if len({match.entry.name for match in matches}) > 1:
        listed = " or ".join(match.name for match in matches)
        raise ModelError(f"The model name {name!r} is shared by different models; say {listed}.")
    return matches[0] if matches else None


def short_name(name: str) -> str:
    """A model's name without its organisation."""
    return name.rpartition("/")[2]
