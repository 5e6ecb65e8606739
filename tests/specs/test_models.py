"""Models by name: the catalogue, its parameter counts and what `known_models` lists."""

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sim.specs.catalog import CatalogEntry, read_catalog, short_name
from sim.specs.models import known_models, load_model
from tests.shared import SHARED, needs_shared

# The 14 checkpoints whose safetensors total is known and holds nothing but the text model, with that total
EXACT_PARAMETERS = {
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "meta-llama/Llama-3.1-405B-Instruct": 405_853_388_800,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-32B": 32_762_123_264,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "Qwen/Qwen3-235B-A22B": 235_093_634_560,
    "openai/gpt-oss-20b": 20_914_757_184,
    "openai/gpt-oss-120b": 116_829_156_672,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": 46_702_792_704,
    "mistralai/Mistral-Small-24B-Instruct-2501": 23_572_403_200,
    "mistralai/Mistral-Nemo-Instruct-2407": 12_247_782_400,
    "MiniMaxAI/MiniMax-M2.5": 228_689_764_864,
}


@pytest.mark.parametrize(("name", "num_parameters"), EXACT_PARAMETERS.items())
def test_parameters_equal_the_checkpoint_to_the_last_one(name: str, num_parameters: int) -> None:
    """The layers as matrices add up to the safetensors total."""
    assert load_model(name).num_parameters == num_parameters


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 108_641_793_536),
        ("google/gemma-3-27b-it", 27_432_406_640),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", 24_011_361_280),
    ],
)
def test_the_vision_tower_accounts_for_the_rest_of_a_multimodal_checkpoint(name: str, total: int) -> None:
    """Text model and vision tower together are the safetensors total."""
    model = load_model(name)
    assert model.num_parameters + model.num_vision_parameters == total


def test_kimi_k2_is_its_checkpoint_but_for_3416_numbers() -> None:
    """The published total of 1.026 T holds 3,416 more than the described matrices."""
    assert load_model("moonshotai/Kimi-K2-Instruct").num_parameters == 1_026_408_235_864 - 3_416


def _catalogue_rows() -> list[dict[str, str]]:
    file = SHARED / "catalog" / "models.csv"
    return list(csv.DictReader(file.read_text(encoding="utf-8").splitlines())) if file.exists() else []


@needs_shared
@pytest.mark.parametrize("row", _catalogue_rows(), ids=lambda row: row["hf_id"])
def test_every_model_of_the_reference_table_has_its_facts(row: dict[str, str]) -> None:
    """Total and active parameters equal the computed columns, or come near the published ones where there are none."""
    model = load_model(row["hf_id"].split(" ")[0])
    if row["computed_params"]:
        assert model.num_parameters == int(row["computed_params"])
        assert model.num_active_parameters == int(row["computed_active"])
        assert model.approximation is None
    else:
        assert model.num_parameters == pytest.approx(float(row["published_total_b"]) * 1e9, rel=0.06)
    assert model.hidden_size == int(row["hidden_size"])
    assert model.vocab_size == int(row["vocab_size"])


def _config_folders() -> list[Path]:
    return sorted((SHARED / "catalog" / "hf_configs").glob("*")) if SHARED.is_dir() else []


@needs_shared
@pytest.mark.parametrize("folder", _config_folders(), ids=lambda folder: folder.name)
def test_a_checkpoint_folder_and_the_catalogue_describe_the_same_model(folder: Path) -> None:
    """Through transformers or from the catalogue: the same layers, lengths and formats."""
    from_folder, from_catalogue = load_model(folder), load_model(folder.name.replace("--", "/"))
    assert from_folder.layers == from_catalogue.layers
    assert from_folder.max_model_len == from_catalogue.max_model_len
    assert from_folder.lm_head == from_catalogue.lm_head
    assert from_folder.embedding == from_catalogue.embedding
    assert from_folder.quantization == from_catalogue.quantization
    assert from_folder.dtype == from_catalogue.dtype
    assert from_folder.architecture == from_catalogue.architecture


@pytest.mark.parametrize("entry", read_catalog(), ids=lambda entry: entry.name)
def test_a_catalogue_entry_written_as_config_json_loads_through_transformers(
    entry: CatalogEntry, tmp_path: Path
) -> None:
    """The defaults of transformers' classes add nothing that the catalogue's keys leave open."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(entry.config), encoding="utf-8")
    from_file, from_catalogue = load_model(file), load_model(entry.name)
    assert from_file.layers == from_catalogue.layers
    assert from_file.max_model_len == from_catalogue.max_model_len
    assert from_file.num_parameters == from_catalogue.num_parameters
    assert from_file.num_vision_parameters == from_catalogue.num_vision_parameters


@needs_shared
@pytest.mark.parametrize("file", ["serving.json", "closed_loop.json"])
def test_every_measured_model_is_known_in_its_precision(file: str) -> None:
    """The measured runs name models and weight precisions that the catalogue answers without a network."""
    runs = json.loads((SHARED / "measured" / file).read_text(encoding="utf-8"))["runs"]
    for model, precision in {(run["model"], run.get("weights_precision")) for run in runs}:
        bits = {None: 16.0, "fp8": 8.0, "fp4": 4.0, "int4": 4.0}[precision]
        layer = load_model(model, quantization=precision).layers[-1]
        largest = layer.experts.weight if layer.experts else layer.linears[-1].weight
        assert largest.bits == bits or precision is None


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("llama-3.3-70b-instruct", "meta-llama/Llama-3.3-70B-Instruct"),
        ("QWEN/qwen3-30b-a3b-instruct-2507", "Qwen/Qwen3-30B-A3B-Instruct-2507"),
        ("Mixtral-8x22B-Instruct-v0.1", "mistralai/Mixtral-8x22B-Instruct-v0.1"),
        ("DeepSeek-R1", "deepseek-ai/DeepSeek-R1"),
    ],
)
def test_short_names_and_any_case_find_the_model_under_its_own_name(short: str, full: str) -> None:
    """The organisation may be left out; the spec carries the name that was meant, in the hub's spelling."""
    assert load_model(short).name == full


def test_dated_releases_differ_where_their_configs_do() -> None:
    """The 2507 releases of Qwen3-30B-A3B have the same shape and 262,144 tokens of context."""
    base, dated = load_model("Qwen3-30B-A3B"), load_model("Qwen3-30B-A3B-Instruct-2507")
    assert (base.max_model_len, dated.max_model_len) == (40_960, 262_144)
    assert base.layers == dated.layers


def test_no_name_of_the_catalogue_is_taken_twice() -> None:
    """Each name and alias belongs to one entry, also without its organisation."""
    owners = {(short_name(name).lower(), entry.name) for entry in read_catalog() for name in entry.names}
    assert len(owners) == len({name for name, _ in owners})


def test_every_catalogue_entry_says_where_its_facts_come_from() -> None:
    """A number from elsewhere carries its source."""
    assert all(entry.source for entry in read_catalog())


def test_known_models_lists_what_a_person_chooses_by() -> None:
    """A row holds names, sizes, kinds of attention, quantisation and context."""
    rows = {row.name: row for row in known_models()}
    row = rows["Qwen/Qwen3.5-35B-A3B"]
    assert "Qwen/Qwen3.6-35B-A3B" in row.aliases
    assert (row.num_layers, row.attention, row.max_model_len) == (40, ("linear", "full"), 262_144)
    assert row.num_active_parameters < row.num_parameters / 10
    assert rows["openai/gpt-oss-120b"].quantization == "mxfp4"
    assert rows["moonshotai/Kimi-K3"].approximation
    assert rows["meta-llama/Llama-3.1-8B"].approximation is None


def test_a_catalogue_model_loads_fast_and_without_transformers() -> None:
    """No heavy library is imported, and the lookup takes milliseconds."""
    program = (
        "import sys; from sim.specs.models import load_model; load_model('Llama-3.1-8B');"
        "assert 'transformers' not in sys.modules and 'huggingface_hub' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    start = time.perf_counter()
    load_model("Llama-3.3-70B")
    assert time.perf_counter() - start < 0.5
