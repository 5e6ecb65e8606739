"""Layer profiles: kernels of one model's layer timed on a GPU, as LLMServingSim's profiler writes them.

A folder has `meta.yaml`, by itself or in one of its own (`bf16`), and for each tensor-parallel size a folder (`tp1`) of tables, plain or
gzip: `dense.csv` (layer, tokens, time_us), `attention.csv` (prefill_chunk, kv_prefill, n_decode, kv_decode, time_us) and
`per_sequence.csv` (layer, sequences, time_us).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from sim import inputs
from sim.errors import ProfileError
from sim.measure.kernel_fits import Call
from sim.specs.hardware import HardwareProfile
from sim.specs.model import Attention, Layer, Linear, ModelSpec
from sim.specs.models import load_model
from sim.steptime.operators import decode_attention, decode_attention_s, elementwise_s, gemm_s
from sim.steptime.prefill import mixed_attention_s, prefill_attention, prefill_attention_s, prefill_speed, prefill_work
from sim.steptime.token_work import activation_bytes, norm_bytes, rope_bytes
from sim.units import US

KV_BYTES = 2.0
DENSE, ATTENTION, PER_SEQUENCE = "dense", "attention", "per_sequence"
COLUMNS = {
    DENSE: ("layer", "tokens", "time_us"),
    ATTENTION: ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"),
    PER_SEQUENCE: ("layer", "sequences", "time_us"),
}
LEAST = {"tokens": 1, "sequences": 1, "time_us": 1e-6}  # of a column; of all others 0
NORMS = ("layernorm", "final_layernorm")


class Measured(NamedTuple):
    """A call of an operator of `kernel_fits.TARGETS`."""

    operator: str
    call: Call


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """What was profiled, and the tables by tensor-parallel size."""

    folder: Path
    gpu: str
    vllm_version: str
    model: ModelSpec
    tables: Mapping[int, Mapping[str, "pd.DataFrame"]]

    @property
    def title(self) -> str:
        """For a profile's `source`."""
        return f"a layer profile of {self.model.name} on {self.gpu}, vLLM {self.vllm_version}"

    def calls(self, gpu: HardwareProfile, sizes: Sequence[int] | None = None) -> dict[str, list[Call]]:
        """By operator; those of some tensor-parallel sizes, or of all. Steps whose KV cache the GPU has no room for are left out."""
        found: dict[str, list[Call]] = {}
        for size in sizes or self.tables:
            for operator, call in self._of_rank(size, gpu):
                found.setdefault(operator, []).append(call)
        return found

    def _of_rank(self, size: int, gpu: HardwareProfile) -> Iterator[Measured]:
        layer, tables = self.model.layers[0].per_rank(size), self.tables[size]
        yield from _dense(tables[DENSE], layer, self.model)
        yield from _heads(tables[PER_SEQUENCE], self.model.output_head.per_rank(size))
        kv_bytes_per_token = len(self.model.layers) * layer.attention.kv_numbers_per_token * KV_BYTES
        yield from _attention(tables[ATTENTION], layer.attention, gpu.memory_bytes / kv_bytes_per_token)


def read_layer_profile(folder: Path) -> LayerProfile:
    """Raises ProfileError naming file, column and rule."""
    metas = [path for path in (folder / "meta.yaml", *sorted(folder.glob("*/meta.yaml"))) if inputs.is_there(path)]
    if len(metas) != 1:
        raise ProfileError(f"{folder}: must hold one meta.yaml, by itself or in a folder, got {len(metas)}.")
    (path,) = metas
    meta = _meta(path)
    sizes = {int(found.name[2:]): found for found in path.parent.glob("tp*") if found.name[2:].isdecimal()}
    if not sizes:
        raise ProfileError(f"{path.parent}: must hold a folder of tables such as tp1, got none.")
    model = load_model(meta["model"])
    if not _is_plain(model):
        raise ProfileError(f"{path}: `model` must be dense with full attention in 16 bits, got {meta['model']}.")
    tables = {size: {name: _table(sizes[size], name) for name in COLUMNS} for size in sorted(sizes)}
    return LayerProfile(folder, meta["gpu"], meta["vllm_version"], model, tables)


def _meta(path: Path) -> dict[str, str]:
    values = inputs.read_yaml(path, ProfileError)
    found = {key: values.get(key) if isinstance(values, dict) else None for key in ("gpu", "model", "vllm_version")}
    for key, value in found.items():
        if not isinstance(value, str):
            raise ProfileError(f"{path}: `{key}` must be a text, got {value!r}.")
    if values.get("variant", "bf16") != "bf16":
        raise ProfileError(f"{path}: `variant` must be bf16, got {values['variant']!r}; others are not fitted.")
    return {key: str(value) for key, value in found.items()}


def _is_plain(model: ModelSpec) -> bool:
    layer = model.layers[0]
    is_bf16 = all(linear.weight.name == "bf16" for linear in layer.linears)
    return layer.experts is None and layer.attention.kind == "full" and is_bf16


def _table(folder: Path, name: str) -> "pd.DataFrame":
    path = next((path for path in (folder / f"{name}.csv", folder / f"{name}.csv.gz") if inputs.is_there(path)), None)
    if path is None:
        raise ProfileError(f"{folder}: {name}.csv or {name}.csv.gz is required but absent.")
    try:
        table = pd.read_csv(path)
    except (ValueError, OSError, EOFError) as problem:
        raise ProfileError(f"{path}: is no table that can be read ({problem}).") from None
    for column in COLUMNS[name]:
        if column not in table:
            raise ProfileError(f"{path}: the column {column} is required but absent.")
        least = LEAST.get(column, 0)
        if column != "layer" and not (
            pd.api.types.is_numeric_dtype(table[column]) and table[column].between(least, inputs.LARGEST).all()
        ):
            raise ProfileError(f"{path}: the column {column} must hold numbers of at least {least:g}.")
    return table


def _rows(table: "pd.DataFrame") -> Iterator[Any]:
    return iter(table.itertuples())


def _of(operator: Callable[..., float], *arguments: object) -> Callable[[HardwareProfile], float]:
    return lambda gpu: operator(*arguments, gpu)


def _dense(table: "pd.DataFrame", layer: Layer, model: ModelSpec) -> Iterator[Measured]:
    linears = {linear.name: linear for linear in layer.linears}
    moved = {
        **dict.fromkeys(NORMS, norm_bytes(model)),
        "rotary_emb": rope_bytes(layer),
        "act_fn": sum(activation_bytes(layer)),
    }
    for row in _rows(table):
        shape, measured_s = f"{row.layer}/{row.tokens}", row.time_us * US
        if row.layer in linears:
            predict = _of(gemm_s, float(row.tokens), linears[row.layer])
            yield Measured("gemm bf16", Call(shape, measured_s, predict, rows=int(row.tokens)))
        elif row.layer in moved:
            yield Measured(
                "elementwise", Call(shape, measured_s, _of(elementwise_s, float(row.tokens * moved[row.layer])))
            )


def _heads(table: "pd.DataFrame", head: Linear) -> Iterator[Measured]:
    for row in _rows(table[table["layer"] == "lm_head"]):
        predict = _of(gemm_s, float(row.sequences), head)
        yield Measured("gemm bf16", Call(f"lm_head/{row.sequences}", row.time_us * US, predict))


def _attention(table: "pd.DataFrame", attention: Attention, most_tokens: float) -> Iterator[Measured]:
    for row in _rows(table):
        num_decodes, context_tokens = int(row.n_decode), float(row.n_decode * row.kv_decode)
        chunk = (int(row.prefill_chunk), int(row.kv_prefill))
        if context_tokens + sum(chunk) > most_tokens or not (num_decodes or chunk[0]):
            continue
        shape, measured_s = f"{row.prefill_chunk}/{row.kv_prefill}/{row.n_decode}/{row.kv_decode}", row.time_us * US
        if not chunk[0]:
            predict = _of(_decode_s, num_decodes, attention, context_tokens)
            yield Measured("decode attention", Call(shape, measured_s, predict))
        elif not num_decodes:
            yield Measured("prefill attention", Call(shape, measured_s, _of(_prefill_s, chunk, attention)))
        else:
            predict = _of(_mixed_s, chunk, num_decodes, context_tokens, attention)
            yield Measured("mixed attention", Call(shape, measured_s, predict))


def _decode_s(num: int, attention: Attention, context_tokens: float, gpu: HardwareProfile) -> float:
    work = decode_attention(num, attention, KV_BYTES, gpu)
    return work.fixed_s + decode_attention_s(work, context_tokens)


def _prefill_s(chunk: tuple[int, int], attention: Attention, gpu: HardwareProfile) -> float:
    fit = gpu.operators.prefill_attention
    work = prefill_work(prefill_attention(attention, KV_BYTES, fit), (chunk,))
    return fit.launch_s + prefill_attention_s(work, prefill_speed(fit, gpu))


def _mixed_s(
    chunk: tuple[int, int], num_decodes: int, context_tokens: float, attention: Attention, gpu: HardwareProfile
) -> float:
    launch_s = gpu.operators.prefill_attention.launch_s
    return launch_s + mixed_attention_s((chunk,), num_decodes, context_tokens, attention, KV_BYTES, gpu)
