"""A command line of vLLM taken apart: what launches it, its flags with their values, and the rest."""

import re
import shlex
from collections import deque
from collections.abc import Container, Sequence
from typing import NamedTuple

from sim.errors import ConfigError
from sim.specs.flag_hints import did_you_mean, likely_flags
from sim.specs.serve_flags import ALIASES, SHORT_FLAGS, Arity, arity_of, known_flags

_NEGATIVE_NUMBER = re.compile(r"-\d[\d.]*[kKmMgGtT]?")
_LEVEL = re.compile(r"-O([0-3])")
_IMAGE = re.compile(r"(?:.*/)?vllm-openai(?::v?(\d+\.\d+\.\d+)\S*|:\S+)?")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=.*", re.DOTALL)
_CONTAINER_RUNTIMES = {"docker", "podman", "nerdctl"}
_SHELL = re.compile(r"[|&;<>].*|\d>.*")


class Flag(NamedTuple):
    """A flag as given: canonical `name`, `key` behind a dot (one entry of a JSON value), `on` False for --no-..."""

    name: str
    key: str
    values: tuple[str, ...]
    on: bool
    spelled: str


class UnknownFlagError(ConfigError):
    """A flag that vLLM does not have."""

    def __init__(self, shown: str, name: str) -> None:
        self.shown, self.name = shown, name
        hint = did_you_mean(likely_flags(name, [flag.lstrip("-") for flag in known_flags()]))
        super().__init__(f"{shown} is not a flag of vllm serve.{hint}")


class Launch(NamedTuple):
    """What stands before the flags of a pasted line: environment variables, and the version a container image names."""

    args: list[str]
    environment: dict[str, str]
    vllm_version: str | None


def shell_words(command: str) -> list[str]:
    """The words of a shell line, over continuation lines and up to a pipe or redirection."""
    try:
        words = shlex.split(re.sub(r"\\[ \t\r]*\n", " ", command))
    except ValueError as error:
        raise ConfigError(f"The pasted command is not a shell line: {str(error).lower()}; check its quotes.") from None
    end = next((index for index, word in enumerate(words) if _SHELL.fullmatch(word)), len(words))
    return words[:end]


def find_launch(words: Sequence[str]) -> Launch | None:
    """The arguments behind `vllm serve`, `python -m vllm.entrypoints.openai.api_server` or a vllm-openai image, if any."""
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        is_serve = word.rsplit("/", 1)[-1] == "vllm" and following == "serve"
        if is_serve or (word == "-m" and following == "vllm.entrypoints.openai.api_server"):
            return Launch(list(words[index + 2 :]), _environment(words[:index]), None)
        if (image := _IMAGE.fullmatch(word)) and not _CONTAINER_RUNTIMES.isdisjoint(words[:index]):
            return Launch(list(words[index + 1 :]), _environment(words[:index]), image[1])
    return None


def _environment(words: Sequence[str]) -> dict[str, str]:
    return {found[1]: word.partition("=")[2] for word in words if (found := _ASSIGNMENT.fullmatch(word))}


def read_flags(args: Sequence[str]) -> tuple[list[Flag], list[str]]:
    """The flags in order, and what is neither a flag nor a value of one. ConfigError for a flag vLLM does not have."""
    flags: list[Flag] = []
    others: list[str] = []
    queue = deque(args)
    while queue:
        word = queue.popleft()
        if is_flag(word):
            flags.append(_read_flag(word, queue))
        else:
            others.append(word)
    return flags, others


def split_flags(args: Sequence[str], own: Container[str]) -> tuple[list[str], list[str]]:
    """The words of a command's `own` options and arguments, and those of vLLM's flags with their values."""
    own_words: list[str] = []
    engine_words: list[str] = []
    queue = deque(args)
    while queue:
        word = queue.popleft()
        if not is_flag(word) or word.partition("=")[0] in own:
            own_words.append(word)
            continue
        before = list(queue)
        _read_flag(word, queue)
        engine_words += [word, *before[: len(before) - len(queue)]]
    return own_words, engine_words


def is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not _NEGATIVE_NUMBER.fullmatch(word)


def _read_flag(word: str, queue: deque[str]) -> Flag:
    """Takes the flag's values from the queue, as many as vLLM's parser would."""
    spelled, equals, value = word.partition("=")
    if level := _LEVEL.fullmatch(spelled):
        return Flag("optimization-level", "", (level[1],), True, spelled)
    name, key, on = flag_name(spelled)
    if equals:
        return Flag(name, key, (value,), on, spelled)
    arity = "one" if key else arity_of(name)
    return Flag(name, key, _take_values(spelled, arity, queue), on, spelled)


def flag_name(spelled: str, *, shown: str = "") -> tuple[str, str, bool]:
    """Canonical name, key behind a dot and whether it switches on, of a flag in any spelling that vLLM accepts.

    UnknownFlagError for any other, `shown` in its place.
    """
    base, _, key = spelled.lstrip("-").partition(".")
    base = base.replace("_", "-")
    name = ALIASES.get(base, base) if spelled.startswith("--") else SHORT_FLAGS.get(base, base)
    if name == "optimization-level" and key:  # -O.cudagraph_mode=... of older versions
        name = "compilation-config"
    if arity_of(name):
        return name, key, True
    if name.startswith("no-") and arity_of(name[3:]) == "none":
        return name[3:], key, False
    raise UnknownFlagError(shown or spelled, name)


def _take_values(spelled: str, arity: Arity | None, queue: deque[str]) -> tuple[str, ...]:
    if arity == "none":
        return (queue.popleft(),) if queue and queue[0].lower() in {"true", "false"} else ()
    if not queue or is_flag(queue[0]):
        raise ConfigError(f"{spelled} needs a value, got none.")
    values = [queue.popleft()]
    while arity == "many" and queue and not is_flag(queue[0]):
        values.append(queue.popleft())
    return tuple(values)
