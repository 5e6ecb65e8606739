"""Workloads by name: a YAML file each, in `traces/`."""

from pathlib import Path

from sim.errors import ConfigError, nearest
from sim.inputs import is_there
from sim.specs.data import data_dir
from sim.workload.source import STDIN, open_trace, yaml_text
from sim.workload.spec_file import SpecFile, parse_spec, read_spec


def workload_names() -> list[str]:
    """The workloads that come with Servecast."""
    return sorted(file.stem for file in data_dir("traces").glob("*.yaml"))


def named_workload(name: str) -> SpecFile:
    """The file of that name. Raises ConfigError where there is none."""
    known = workload_names()
    if name not in known:
        raise ConfigError(f"the workload {name!r} is unknown; there are {', '.join(known)}.{nearest(name, known)}")
    return read_spec(data_dir("traces") / f"{name}.yaml")


def find_workload(given: str) -> SpecFile:
    """A YAML file as it is, `-` for standard input, or by name one that comes with Servecast. Raises SimError for anything else."""
    if given == STDIN:
        with open_trace(Path(STDIN)) as stream:
            return parse_spec(yaml_text(stream, "stdin"), "stdin", Path())
    return read_spec(Path(given)) if is_there(Path(given), Path.is_file) else named_workload(given)
