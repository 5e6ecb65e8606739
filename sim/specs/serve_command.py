"""`vllm serve` command lines and config files as engine arguments, and back.

A line of a server of several nodes is that of one of them. Which have API servers, and so an address, follows vLLM's engine/arg_utils.py
(`create_engine_config`, 0.32 and 0.33): `--data-parallel-start-rank` beside `--data-parallel-size-local` asks for it as `--data-parallel-hybrid-lb`
does, unless a node is `--headless` or its ranks have addresses; with the flag itself `--headless` is refused.
Deliberate difference: a start rank of 0 asks for it in all versions, where older ones take it for none.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, get_args

from sim.errors import ConfigError, listed, nearest
from sim.inputs import read_yaml
from sim.specs.arguments import DENSELY
from sim.specs.engine import EngineConfig, MoEBackend
from sim.specs.kv_transfer import offloading_arguments
from sim.specs.notes import engine_notes
from sim.specs.presets import preset_arguments
from sim.specs.serve_flags import (
    APPROXIMATED,
    COMPILATION_FIELDS,
    DEFAULT_BACKEND_NAMES,
    DEFAULT_KERNELS,
    ENGINE_FLAGS,
    IGNORED,
    OTHER_COMPILATION_KEYS,
    SPECULATIVE_KEYS,
    UNSIMULATED,
    EngineFlag,
)
from sim.specs.serve_tokens import Flag, find_launch, flag_name, read_flags, shell_words
from sim.specs.speculative_config import SpeculativeConfig

_HUMAN_INTEGER = re.compile(
    r"(?P<whole>-?\d{1,15})(?P<binary>[KMGT])|(?P<number>-?\d{1,15}(?:\.\d{1,15})?)(?P<decimal>[kmgt]?)"
)
UNSPELLED = ("swap_space", "pp_layer_partition")
"""Arguments of engines before V1, which the newest versions refuse, and those that vLLM has from its environment."""
OTHER_SPELLINGS = {"data_parallel_external_lb": "data-parallel-multi-port-external-lb"}
"""Flags that start all of a server, where an argument's own starts one rank of it."""
LAYER_PARTITION = "VLLM_PP_LAYER_PARTITION"
USES_MARLIN = ("VLLM_MXFP4_USE_MARLIN", "1")  # what chose it before there was a flag
_LEVEL_MODES: Mapping[str, str | None] = {"0": "NONE", "1": "PIECEWISE", "2": None, "3": None}


class ParsedServe(NamedTuple):
    """What a command line says. `warnings` are sentences about flags that change nothing or are not simulated.

    `files` were read for it.
    """

    model: str | None
    engine: EngineConfig
    vllm_version: str | None
    warnings: tuple[str, ...]
    files: tuple[str, ...] = ()


def parse_serve_command(command: str | Sequence[str]) -> ParsedServe:
    """A pasted `vllm serve MODEL ...` (or api_server module, or vllm-openai container) line, as text or as words.

    Raises ConfigError for another command, an unknown flag, and a flag whose effect is not simulated.
    """
    words = shell_words(command) if isinstance(command, str) else list(command)
    if find_launch(words) is None:
        raise ConfigError(f"A pasted command must hold `vllm serve MODEL ...`, got {shlex.join(words)[:60]!r}.")
    return parse_engine_args(words)


def parse_engine_args(args: Sequence[str]) -> ParsedServe:
    """Flags of `vllm serve` as words, or a whole pasted command line; a later flag wins over an earlier one.

    `--config FILE.yaml` is read as vLLM does (keys are flag names; the command line wins), and `--vllm-version` names the
    version; `--preset` gives arguments over which all others win. Raises ConfigError for an unknown flag and for one whose effect is not simulated.
    """
    launch = find_launch(args)
    flags, others = read_flags(launch.args if launch else args)
    if others[1 if launch else 0 :]:
        raise ConfigError(f"{others[-1]!r} is neither a flag of vllm serve nor the value of one.")
    config, preset = _last(flags, "config"), _last(flags, "preset")
    draft = _Draft(vllm_version=launch.vllm_version if launch else None, config=config)
    if preset is not None:
        draft.arguments |= preset_arguments(preset, "--preset")
    for name, value in (launch.environment if launch else {}).items():
        _read_environment(draft, name, value)
    for flag in (*_file_flags(config), *(flag for flag in flags if flag.name not in {"config", "preset"})):
        _apply(draft, flag)
    draft.model = others[0] if others else draft.model
    return draft.finish()


def _last(flags: Sequence[Flag], name: str) -> str | None:
    """The value of a flag, of several that of the last."""
    return next((flag.values[0] for flag in reversed(flags) if flag.name == name), None)


def serve_command(model: str, engine: EngineConfig) -> str:
    """The `vllm serve` line for these arguments, ready to paste; what is left to vLLM's defaults is left out."""
    words = (
        []
        if engine.pp_layer_partition is None
        else [f"{LAYER_PARTITION}={','.join(map(str, engine.pp_layer_partition))}"]
    )
    words += ["vllm", "serve", model]
    for name, value in engine.given.items():
        words += [] if name in engine.what_ifs or name in UNSPELLED else flag_words(name, value)
    if engine.data_parallel_external_lb and engine.data_parallel_size_local is None:
        words += ["--data-parallel-size-local", str(engine.data_parallel_size)]
    if not engine.what_ifs:
        return shlex.join(words)
    asked = listed([f"{name} {value}" for name, value in engine.what_ifs.items()])
    return f"{shlex.join(words)}  # without {asked}, which no vLLM has"


def flag_words(name: str, value: Any) -> list[str]:
    """The flag that sets an engine argument, and what stands behind it."""
    flag = OTHER_SPELLINGS.get(name) or name.replace("_", "-")
    if name == "cudagraph_mode":
        return [f"--compilation-config.cudagraph_mode={value}"]
    if name == "eviction_policy":
        return ["--kv-transfer-config", json.dumps({"kv_connector_extra_config": {name: value}})]
    if name == "num_redundant_experts":
        return [f"--eplb-config.num_redundant_experts={value}"]
    if isinstance(value, SpeculativeConfig):
        return [f"--{flag}", json.dumps(value.to_json())]
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", *map(str, value if isinstance(value, tuple) else (value,))]


@dataclass(slots=True)
class _Draft:
    """The result of the flags read so far."""

    model: str | None = None
    vllm_version: str | None = None
    level_mode: str | None = None
    config: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    speculation: dict[str, Any] = field(default_factory=dict)
    """Keys of --speculative-config, with the flags' values; 0 drafts are no speculation."""
    start_rank: Flag | None = None
    size_local: Flag | None = None
    is_headless: bool = False
    idle: dict[str, str] = field(default_factory=dict)
    """What changes nothing, each with its sentence."""
    approximated: dict[str, list[str]] = field(default_factory=dict)
    """What holds instead of flags that are not simulated, each with those flags."""

    def finish(self) -> ParsedServe:
        if self.level_mode:
            self.arguments.setdefault("cudagraph_mode", self.level_mode)
        if self.speculation and self.speculation.get("num_speculative_tokens") != 0:
            self.arguments["speculative_config"] = SpeculativeConfig.parse(self.speculation, "--speculative-config")
        self._give_nodes_addresses()
        files = (self.config,) if self.config else ()
        engine = EngineConfig(**self.arguments)
        warnings = (*self._warnings(), *engine_notes(engine, self.vllm_version))
        return ParsedServe(self.model, engine, self.vllm_version, warnings, files)

    def _give_nodes_addresses(self) -> None:
        """If they ask for them. Raises ConfigError where a node is to have one and no API server."""
        arguments, start, local = self.arguments, self.start_rank, self.size_local
        have_ranks = arguments.get("data_parallel_external_lb")
        if start and local and not (self.is_headless or have_ranks):
            arguments["data_parallel_hybrid_lb"] = True
        if not arguments.get("data_parallel_hybrid_lb"):
            if start and not have_ranks:
                _change_nothing(self, start)
            return
        if self.is_headless:
            raise ConfigError(
                "--data-parallel-hybrid-lb gives each node API servers, got --headless, which starts none; leave one of them out."
            )
        if local:
            arguments["data_parallel_size_local"] = _value(ENGINE_FLAGS[local.name], local)
            del self.idle[local.spelled]

    def _warnings(self) -> Iterator[str]:
        """One sentence for all flags that change nothing, and one for each substitute that holds instead."""
        if len(self.idle) == 1:
            yield from self.idle.values()
        elif self.idle:
            yield f"{listed(list(self.idle))} change nothing here."
        for instead, flags in self.approximated.items():
            several = list(dict.fromkeys(flags))
            yield f"{listed(several)} {'is' if len(several) == 1 else 'are'} not simulated: {instead}."


def _layer_partition(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        raise ConfigError(
            f"{LAYER_PARTITION} must be the layers of each pipeline stage, such as 20,12, got {text[:40]!r}; correct it, or leave it out."
        ) from None


def _read_environment(draft: _Draft, name: str, value: str) -> None:
    if name == LAYER_PARTITION:
        draft.arguments["pp_layer_partition"] = _layer_partition(value)
    elif (name, value) == USES_MARLIN:
        draft.arguments["moe_backend"] = "marlin"
    else:
        draft.idle[name] = _environment_warning(name, value)


def _environment_warning(name: str, value: str) -> str:
    if (name, value) == ("VLLM_USE_V1", "0"):
        raise ConfigError("VLLM_USE_V1=0 asks for the engine before V1, which is not simulated; leave it out.")
    return f"The environment variable {name} changes nothing here."


def _apply(draft: _Draft, flag: Flag) -> None:
    if instead := _instead(flag):
        draft.approximated.setdefault(instead, []).append(flag.spelled)
    elif flag.name in _RULES:
        _RULES[flag.name](draft, flag)
    elif flag.name in ENGINE_FLAGS:
        draft.arguments[ENGINE_FLAGS[flag.name].field] = _value(ENGINE_FLAGS[flag.name], flag)
    elif flag.name in UNSIMULATED:
        _refuse_unless_harmless(flag)
    elif flag.name in IGNORED:
        _change_nothing(draft, flag)
    elif flag.name == "model":
        draft.model = flag.values[0]
    elif flag.name == "vllm-version":
        draft.vllm_version = flag.values[0]
    elif flag.name == "optimization-level":
        draft.level_mode = _level_mode(flag)
    elif flag.name == "dtype":
        draft.idle[f"{flag.spelled} {flag.values[0]}"] = _dtype_warning(flag)
    else:
        raise ConfigError(f"{flag.spelled} must be given on the command line, got it in a config file.")


def _change_nothing(draft: _Draft, flag: Flag) -> None:
    draft.idle[flag.spelled] = f"{flag.spelled} changes nothing here."


def _instead(flag: Flag) -> str | None:
    """What holds instead of a flag that is accepted without its effect."""
    if flag.name == "moe-backend":
        return None if flag.values[0] in get_args(MoEBackend) else DEFAULT_KERNELS
    return APPROXIMATED[flag.name][1] if flag.name in APPROXIMATED else None


WORDS: Mapping[tuple[str, str], str] = {
    ("max_model_len", "auto"): "auto",
    ("max_model_len", "-1"): "auto",
    ("prefix_cache_retention_interval", DENSELY): DENSELY,
}
"""What stands for no number, by field."""


def _value(known: EngineFlag, flag: Flag) -> object:
    if known.argument.kind == "switch":
        return _is_on(flag)
    if known.argument.kind in {"sizes", "texts"}:
        return _several(known, flag)
    text = flag.values[0]
    if (known.field, text) in WORDS:
        return WORDS[known.field, text]
    if known.field == "all2all_backend" and text in DEFAULT_BACKEND_NAMES:
        return known.argument.choices[0]
    if known.argument.kind == "integer":
        return _integer(flag.spelled, text)
    return _number(flag.spelled, text) if known.argument.kind == "number" else text


def _several(known: EngineFlag, flag: Flag) -> tuple[object, ...]:
    if known.argument.kind == "texts":
        return tuple(flag.values)
    return tuple(_integer(flag.spelled, size) for text in flag.values for size in text.split(","))


def _is_on(flag: Flag) -> bool:
    """Older versions took a value behind a switch, as in --enable-chunked-prefill=False."""
    text = flag.values[0].lower() if flag.values else "true"
    if text not in {"true", "false"}:
        raise ConfigError(
            f"{flag.spelled} is a switch without a value, got {flag.values[0]!r}; --no-{flag.name} is its opposite."
        )
    return flag.on == (text == "true")


def _integer(spelled: str, text: str) -> int:
    """As vLLM reads them: 1K is 1,024, 1k is 1,000 and may be 1.5k."""
    found = _HUMAN_INTEGER.fullmatch(text)
    if found and found["binary"]:
        return int(found["whole"]) << 10 * ("KMGT".index(found["binary"]) + 1)
    number = Decimal(found["number"]) * 1000 ** " kmgt".index(found["decimal"] or " ") if found else Decimal("NaN")
    if not found or number % 1:
        raise ConfigError(f"{spelled} must be a whole number such as 8192, 8K or 1.5k, got {text!r}.")
    return int(number)


def _number(spelled: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{spelled} must be a number, got {text!r}.") from None


def _refuse_unless_harmless(flag: Flag) -> None:
    unsimulated = UNSIMULATED[flag.name]
    is_off = unsimulated.arity == "none" and not _is_on(flag)
    if not is_off and (flag.key or flag.values not in {(value,) for value in unsimulated.harmless}):
        given = " ".join((flag.spelled, *flag.values))
        raise ConfigError(f"{given} asks for {unsimulated.what}, which is not simulated; leave it out.")


def _level_mode(flag: Flag) -> str | None:
    level = flag.values[0].removeprefix("O")
    if level not in _LEVEL_MODES:
        raise ConfigError(f"{flag.spelled} must be a level from 0 to 3, got {flag.values[0]!r}.")
    return _LEVEL_MODES[level]


def _dtype_warning(flag: Flag) -> str:
    if flag.values[0] not in {"auto", "bfloat16", "float16", "half"}:
        raise ConfigError(
            f"{flag.spelled} must be auto, bfloat16, float16 or half, got {flag.values[0]!r}; "
            "for 32-bit weights give a config.json with that torch_dtype as the model."
        )
    return f"{flag.spelled} {flag.values[0]} changes nothing here: types of 16 bits cost the same."


def _apply_compilation(draft: _Draft, flag: Flag) -> None:
    """--compilation-config '{...}', or one key of it behind a dot."""
    if flag.key:
        _apply_compilation_key(draft, flag.spelled, flag.key.split(".")[0], _json_or_text(flag.values[0]))
        return
    config = _json_or_text(flag.values[0])
    if not isinstance(config, dict):
        raise ConfigError(
            f'{flag.spelled} must be a JSON object such as {{"cudagraph_mode": "NONE"}}, got {flag.values[0]!r}.'
        )
    for key, value in config.items():
        _apply_compilation_key(draft, flag.spelled, key, value)


def _apply_compilation_key(draft: _Draft, spelled: str, key: str, value: object) -> None:
    if key == "cudagraph_mode":
        draft.arguments[key] = str(value or "NONE").upper()
    elif key in COMPILATION_FIELDS:
        draft.arguments[key] = value
    elif key in OTHER_COMPILATION_KEYS:
        draft.idle[f"{key} of {spelled}"] = f"{key} of {spelled} changes nothing here."
    else:
        hint = nearest(key, [*COMPILATION_FIELDS, *OTHER_COMPILATION_KEYS])
        raise ConfigError(f"{spelled}: {key!r} is not a key of vLLM's compilation config.{hint}")


def _apply_kv_transfer(draft: _Draft, flag: Flag) -> None:
    value = _json_or_text(flag.values[0])
    config = {flag.key: value} if flag.key else value
    found = offloading_arguments(flag.spelled, config)
    if found.size_gib is not None:
        draft.arguments["kv_offloading_size"] = found.size_gib
    if found.eviction_policy is not None:
        draft.arguments["eviction_policy"] = found.eviction_policy


def _apply_eplb(draft: _Draft, flag: Flag) -> None:
    """--eplb-config '{...}', one key of it behind a dot, or the flag that older versions have for the copies."""
    key = "num_redundant_experts" if flag.name == "num-redundant-experts" else flag.key
    config = {key: _json_or_text(flag.values[0])} if key else _json_or_text(flag.values[0])
    if not isinstance(config, dict):
        raise ConfigError(
            f'{flag.spelled} must be a JSON object such as {{"num_redundant_experts": 32}}, got {flag.values[0]!r}.'
        )
    for name, value in config.items():
        if name == "num_redundant_experts":
            draft.arguments[name] = value
        else:
            draft.idle[f"{name} of {flag.spelled}"] = f"{name} of {flag.spelled} changes nothing here."


def _apply_speculative(draft: _Draft, flag: Flag) -> None:
    """--speculative-config '{...}', one key of it behind a dot, or a flag of its own for that key."""
    key = SPECULATIVE_KEYS.get(flag.name, flag.key)
    text = flag.values[0]
    if key:
        draft.speculation[key] = text if key in {"model", "method"} else _json_or_text(text)
        return
    config = _json_or_text(text)
    if not isinstance(config, dict):
        raise ConfigError(
            f'{flag.spelled} must be a JSON object such as {{"method": "eagle3", "num_speculative_tokens": 3}}, got {text!r}.'
        )
    draft.speculation = config


def _apply_addresses(draft: _Draft, flag: Flag) -> None:
    """Two flags but for its own that give each data-parallel rank an address: of one is the rank of the server that the line starts."""
    draft.arguments["data_parallel_external_lb"] = flag.name == "data-parallel-rank" or _is_on(flag)


def _apply_start_rank(draft: _Draft, flag: Flag) -> None:
    draft.start_rank = flag


def _apply_size_local(draft: _Draft, flag: Flag) -> None:
    """It changes nothing unless nodes turn out to have addresses."""
    draft.size_local = flag
    _change_nothing(draft, flag)


def _apply_headless(draft: _Draft, flag: Flag) -> None:
    draft.is_headless = _is_on(flag)
    _change_nothing(draft, flag)


_RULES = {
    **dict.fromkeys(("data-parallel-multi-port-external-lb", "data-parallel-rank"), _apply_addresses),
    "data-parallel-start-rank": _apply_start_rank,
    "data-parallel-size-local": _apply_size_local,
    "headless": _apply_headless,
    "compilation-config": _apply_compilation,
    "kv-transfer-config": _apply_kv_transfer,
    **dict.fromkeys(("eplb-config", "num-redundant-experts"), _apply_eplb),
    "speculative-config": _apply_speculative,
    **dict.fromkeys(SPECULATIVE_KEYS, _apply_speculative),
}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _file_flags(path: str | None) -> list[Flag]:
    return [] if path is None else _mapping_flags(_read_config(Path(path)), path)


def _read_config(path: Path) -> Mapping[str, object]:
    content = read_yaml(path, ConfigError)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"{path}: must hold flag names with their values, such as `max-num-seqs: 64`.")
    return content


def _mapping_flags(arguments: Mapping[str, object], where: str) -> list[Flag]:
    return [_mapping_flag(key, value, f"{where}: {key}") for key, value in arguments.items() if value is not None]


def _mapping_flag(key: str, value: object, spelled: str) -> Flag:
    name, inner, on = flag_name(f"--{key}", shown=spelled)
    if isinstance(value, bool):
        return Flag(name, inner, (str(value),), on, spelled)
    if isinstance(value, dict):
        return Flag(name, inner, (json.dumps(value),), on, spelled)
    values = value if isinstance(value, list) else [value]
    if not values:
        raise ConfigError(f"{spelled} needs a value, got an empty list.")
    return Flag(name, inner, tuple(map(str, values)), on, spelled)
