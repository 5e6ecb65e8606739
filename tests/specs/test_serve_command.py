"""Command lines of vLLM as engine arguments, and back."""

from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.deployment import deploy
from sim.errors import ConfigError
from sim.specs.arguments import BLOCK_SIZES
from sim.specs.engine import KV_CACHE_DTYPE_BYTES, CudagraphMode, EngineConfig, PerformanceMode
from sim.specs.serve_command import ParsedServe, parse_engine_args, parse_serve_command, serve_command
from sim.specs.serve_flags import APPROXIMATED, ENGINE_FLAGS, IGNORED, OTHER_FLAGS, SHORT_FLAGS, UNSIMULATED, arity_of

PASTED = """CUDA_VISIBLE_DEVICES=0,1 vllm serve meta-llama/Llama-3.1-8B-Instruct \\
    --tensor-parallel-size 2 \\
    --max_num_seqs=64 --max-model-len 32K \\
    --no-enable-prefix-caching --served-model-name chat small \\
    --gpu-memory-utilization .95 > vllm.log 2>&1 &
"""


def parse(line: str) -> ParsedServe:
    return parse_engine_args(line.split())


def test_a_pasted_line_is_taken_as_it_is() -> None:
    """Continuation lines, environment variables, underscores, `=`, suffixes, --no- and redirections."""
    parsed = parse_serve_command(PASTED)
    assert parsed.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert parsed.engine == EngineConfig(
        tensor_parallel_size=2,
        max_num_seqs=64,
        max_model_len=32768,
        enable_prefix_caching=False,
        gpu_memory_utilization=0.95,
    )
    assert parsed.warnings == ("CUDA_VISIBLE_DEVICES and --served-model-name change nothing here.",)


@pytest.mark.parametrize(
    "line",
    [
        "vllm serve M --max-num-seqs 8",
        "/opt/venv/bin/vllm serve --max-num-seqs 8 M",
        "vllm serve --model M --max-num-seqs 8",
        "python -m vllm.entrypoints.openai.api_server --model M --max-num-seqs 8",
        "python3 -m vllm.entrypoints.openai.api_server --max-num-seqs=8 --model=M | tee log",
        "docker run --gpus all -p 8000:8000 vllm/vllm-openai --model M --max-num-seqs 8",
    ],
)
def test_every_way_to_launch_the_server(line: str) -> None:
    """The command, the module and the container take the same flags."""
    parsed = parse_serve_command(line)
    assert (parsed.model, parsed.engine) == ("M", EngineConfig(max_num_seqs=8))
    assert parse_serve_command(line.split(" | ", maxsplit=1)[0].split()) == parsed


def test_a_container_image_names_its_version() -> None:
    """The tag of vllm/vllm-openai decides defaults and rules unless --vllm-version is given."""
    line = "docker run --runtime nvidia docker.io/vllm/vllm-openai:v0.15.1-cu130 --model M"
    assert parse_serve_command(line).vllm_version == "0.15.1"
    assert parse_serve_command(f"{line} --vllm-version 0.19.0").vllm_version == "0.19.0"
    assert parse_serve_command("docker run vllm/vllm-openai:latest --model M").vllm_version is None


@pytest.mark.parametrize("line", ["", "vllm bench serve --model M", "sglang serve M", "--max-num-seqs 8"])
def test_another_command_is_refused(line: str) -> None:
    """Only a server's command line can be pasted."""
    with pytest.raises(ConfigError, match=r"^A pasted command must hold `vllm serve MODEL \.\.\.`, got "):
        parse_serve_command(line)


def test_an_open_quote_is_refused() -> None:
    """The shell would not take it either."""
    with pytest.raises(ConfigError, match=r"^The pasted command is not a shell line: no closing quotation; check"):
        parse_serve_command("vllm serve 'M --max-num-seqs 8")


def test_the_engine_before_v1_is_refused() -> None:
    """VLLM_USE_V1=0 is no detail."""
    assert parse_serve_command("VLLM_USE_V1=1 vllm serve M").model == "M"
    with pytest.raises(ConfigError, match=r"^VLLM_USE_V1=0 asks for the engine before V1, which is not simulated"):
        parse_serve_command("VLLM_USE_V1=0 vllm serve M")


def test_a_layer_split_of_ones_own_comes_from_the_environment() -> None:
    """And goes back there; a flag of its name is no flag of vLLM's."""
    line = "VLLM_PP_LAYER_PARTITION=20,12 vllm serve M --pipeline-parallel-size 2"
    engine = parse_serve_command(line).engine
    assert engine == EngineConfig(pipeline_parallel_size=2, pp_layer_partition=(20, 12))
    assert serve_command("M", engine) == line
    assert parse_serve_command("vllm serve M -pp 2 --pp-layer-partition 20 12").engine == engine
    with pytest.raises(ConfigError, match=r"^VLLM_PP_LAYER_PARTITION must be the layers of each .* got '20;12'"):
        parse_serve_command("VLLM_PP_LAYER_PARTITION='20;12' vllm serve M -pp 2")


@pytest.mark.parametrize(
    ("text", "number"),
    [("4096", 4096), ("1k", 1000), ("1K", 1024), ("25.6k", 25600), ("2m", 2_000_000), ("2M", 2 * 1024**2)],
)
def test_human_readable_integers(text: str, number: int) -> None:
    """Small letters count in thousands and may be fractions, capitals in 1024s."""
    assert parse(f"--max-num-batched-tokens {text}").engine.max_num_batched_tokens == number


def test_gigabytes_of_cache() -> None:
    """g and G, t and T."""
    sizes = {text: parse(f"--kv-cache-memory-bytes {text}").engine.kv_cache_memory_bytes for text in ("2g", "2G", "1T")}
    assert sizes == {"2g": 2 * 10**9, "2G": 2 * 1024**3, "1T": 1024**4}


@pytest.mark.parametrize("text", ["1.5", "1.5K", "1.0001k", "8Q", "many", "1e3", "nan", "9" * 5000])
def test_integers_are_whole(text: str) -> None:
    """The message shows the forms that there are."""
    with pytest.raises(ConfigError, match=r"^--max-num-seqs must be a whole number such as 8192, 8K or 1\.5k, got "):
        parse(f"--max-num-seqs {text}")


def test_a_retention_interval_may_be_none() -> None:
    """As vLLM spells that all blocks of windows stay cached; no other number may be so."""
    found = [parse(f"--prefix-cache-retention-interval {text}").engine for text in ("None", "0", "1K")]
    assert [engine.prefix_cache_retention_interval for engine in found] == ["None", 0, 1024]
    with pytest.raises(
        ConfigError, match=r"--max-num-seqs must be a whole number such as 8192, 8K or 1.5k, got 'None'"
    ):
        parse("--max-num-seqs None")


@pytest.mark.parametrize("text", ["auto", "-1"])
def test_max_model_len_may_be_automatic(text: str) -> None:
    """Both spellings of vLLM."""
    assert parse(f"--max-model-len {text}").engine.max_model_len == "auto"
    assert parse(f"--max-model-len={text}").engine.max_model_len == "auto"


def test_numbers_are_numbers() -> None:
    """Text is refused by the flag's name, an impossible number by the argument's rule."""
    with pytest.raises(ConfigError, match=r"^--watermark must be a number, got 'little'"):
        parse("--watermark little")
    with pytest.raises(ConfigError, match=r"^gpu_memory_utilization must be a fraction"):
        parse("--gpu-memory-utilization inf")


@pytest.mark.parametrize(
    ("line", "is_on"),
    [
        ("--enable-chunked-prefill", True),
        ("--no-enable-chunked-prefill", False),
        ("--no_enable_chunked_prefill", False),
        ("--enable-chunked-prefill=False", False),
        ("--enable-chunked-prefill true", True),
        ("--enable-chunked-prefill False", False),
        ("--enable-chunked-prefill --no-enable-chunked-prefill", False),
    ],
)
def test_switches(line: str, is_on: bool) -> None:
    """With the opposite behind --no-, older versions' values, and the last one winning."""
    assert parse(line).engine.enable_chunked_prefill is is_on


def test_a_switch_takes_no_other_value() -> None:
    """The message names the opposite switch."""
    with pytest.raises(
        ConfigError, match=r"^--enforce-eager is a switch without a value, got '1'; --no-enforce-eager is"
    ):
        parse("--enforce-eager=1")


def test_a_flag_without_its_value() -> None:
    """Also where another flag follows."""
    for line in ("--max-num-seqs", "--max-num-seqs --enforce-eager"):
        with pytest.raises(ConfigError, match=r"^--max-num-seqs needs a value, got none"):
            parse(line)


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("-tp 2", "tensor_parallel_size", 2),
        ("-tp=2", "tensor_parallel_size", 2),
        ("-q fp8", "quantization", "fp8"),
        ("--device-memory-utilization 0.8", "gpu_memory_utilization", 0.8),
        ("--cudagraph-capture-sizes 1 2 4", "cudagraph_capture_sizes", (1, 2, 4)),
        ("--cudagraph-capture-sizes=1,2,4", "cudagraph_capture_sizes", (1, 2, 4)),
        ("-cc.cudagraph_mode=full_decode_only", "cudagraph_mode", "FULL_DECODE_ONLY"),
        ("--compilation-config.cudagraph_mode NONE", "cudagraph_mode", "NONE"),
        ("--compilation_config.max_cudagraph_capture_size=64", "max_cudagraph_capture_size", 64),
        ("-O.cudagraph_mode=FULL", "cudagraph_mode", "FULL"),
        ('--compilation-config {"cudagraph_mode":null}', "cudagraph_mode", "NONE"),
        ('-cc={"cudagraph_capture_sizes":[8,1]}', "cudagraph_capture_sizes", (1, 8)),
        ("-O0", "cudagraph_mode", "NONE"),
        ("-O1", "cudagraph_mode", "PIECEWISE"),
        ("-O 1", "cudagraph_mode", "PIECEWISE"),
        ("--optimization-level=O1", "cudagraph_mode", "PIECEWISE"),
        ("-O2", "cudagraph_mode", None),
        ("-O3", "cudagraph_mode", None),
        ("-O0 -cc.cudagraph_mode=FULL", "cudagraph_mode", "FULL"),
    ],
)
def test_short_and_nested_flags(line: str, field: str, value: Any) -> None:
    """Short names, lists, the JSON of --compilation-config whole or by key, and optimisation levels."""
    assert getattr(parse(line).engine, field) == value


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-O5", r"^-O5 is not a flag of vllm serve"),
        ("-O 5", r"^-O must be a level from 0 to 3, got '5'"),
        ("--compilation-config 3", r"^--compilation-config must be a JSON object such as .*, got '3'"),
        ("--compilation-config {", r"^--compilation-config must be a JSON object such as .*, got '{'"),
        ("-cc.cudagraph_mod=NONE", r"^-cc.cudagraph_mod: 'cudagraph_mod' is not a key .* Did you mean cudagraph_mode"),
        ("-cc.cudagraph_mode=SOME", r"^cudagraph_mode must be one of "),
        ("-cc.cudagraph_capture_sizes=8", r"^cudagraph_capture_sizes must be a list"),
        ("--dtype float32", r"^--dtype must be auto, bfloat16, float16 or half, got 'float32'; for 32-bit weights"),
        ("--max-num-seq 8", r"^--max-num-seq is not a flag of vllm serve\. Did you mean --max-num-seqs"),
        ("--no-max-num-seqs", r"^--no-max-num-seqs is not a flag of vllm serve\."),
        ("-x", r"^-x is not a flag of vllm serve\."),
        ("--tp 2", r"^--tp is not a flag of vllm serve\."),
        ("llama", r"^'llama' is neither a flag of vllm serve nor the value of one"),
        ("vllm serve M N", r"^'N' is neither a flag of vllm serve nor the value of one"),
    ],
)
def test_what_is_wrong_is_said(line: str, message: str) -> None:
    """Each mistake has its sentence, with the nearest matches of a misspelt name."""
    with pytest.raises(ConfigError, match=message):
        parse(line)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("--ubatch-size 3", "micro-batches other than the two of --enable-dbo"),
        ("--kv-offloading-backend lmcache", "KV offloading other than vLLM's own"),
        ('--hf-overrides {"rope_scaling":1}', "an altered model config"),
        ("--runner pooling", "anything but text generation"),
    ],
)
def test_what_is_not_simulated_is_refused(line: str, what: str) -> None:
    """Better no answer than one for another deployment."""
    with pytest.raises(ConfigError, match=rf" asks for {what}.*, which is not simulated; leave it out\.$"):
        parse(line)


@pytest.mark.parametrize(
    "line",
    ["-pp 1", "-dp 1", "--no-enable-expert-parallel", "--cpu-offload-gb 0", "--runner generate", "--stream-interval 1"],
)
def test_what_is_switched_off_is_harmless(line: str) -> None:
    """The values that leave such a feature off are accepted without a word."""
    assert parse(line) == ParsedServe(None, EngineConfig(), None, ())


@pytest.mark.parametrize("name", sorted(UNSIMULATED))
def test_all_that_is_not_simulated_is_refused(name: str) -> None:
    """No flag of that table slips through."""
    value = [] if UNSIMULATED[name].arity == "none" else ["something"]
    with pytest.raises(ConfigError, match="which is not simulated"):
        parse_engine_args([f"--{name}", *value])


@pytest.mark.parametrize("name", sorted({**IGNORED, **APPROXIMATED}))
def test_what_changes_nothing_says_so(name: str) -> None:
    """Served names, ports and parsers are accepted with a warning, and so are kernels of the user's choice."""
    value = [] if arity_of(name) == "none" else ["something"]
    parsed = parse_engine_args([f"--{name}", *value, "--max-num-seqs", "8"])
    says = "is not simulated: " if name in APPROXIMATED else "changes nothing here."
    assert parsed.engine == EngineConfig(max_num_seqs=8)
    assert len(parsed.warnings) == 1
    assert parsed.warnings[0].startswith(f"--{name} {says}")


def test_a_production_line_gets_one_sentence_for_what_changes_nothing() -> None:
    """However many flags; what holds instead of others is said once; alone, each has its own sentence."""
    parsed = parse_serve_command(
        "HF_TOKEN=x vllm serve M --port 8000 --host 0.0.0.0 --dtype bfloat16 --api-key a b --seed 1 -cc.use_inductor=true "
        "--port 80 --attention-backend X --moe-backend Y --max-num-seqs 8"
    )
    assert parsed.warnings == (
        "HF_TOKEN, --port, --host, --dtype bfloat16, --api-key, --seed and use_inductor of -cc.use_inductor change nothing here.",
        "--attention-backend and --moe-backend are not simulated: step times are those of the default kernels.",
    )
    assert parse_serve_command("A=1 vllm serve M").warnings == ("The environment variable A changes nothing here.",)
    with pytest.raises(ConfigError, match=r"--prot is not a flag of vllm serve\. Did you mean --port"):
        parse_serve_command("vllm serve M --host 0.0.0.0 --prot 8000")


def test_marlin_is_chosen_by_a_flag_or_by_the_environment() -> None:
    """The other kernels for experts are not told apart."""
    assert parse("--moe-backend marlin").engine.moe_backend == "marlin"
    by_environment = parse_serve_command("VLLM_MXFP4_USE_MARLIN=1 vllm serve M")
    assert (by_environment.engine.moe_backend, by_environment.warnings) == ("marlin", ())
    assert parse("--moe-backend auto").warnings == ()
    other = parse("--moe-backend triton")
    assert other.engine.moe_backend == "auto"
    assert other.warnings == ("--moe-backend is not simulated: step times are those of the default kernels.",)


def test_arguments_that_others_make_void_say_so() -> None:
    """Graph sizes under eager execution, memory utilisation beside a given cache size, 16-bit types."""
    assert parse("--enforce-eager -cc.cudagraph_mode=FULL").warnings == (
        "cudagraph_mode changes nothing here: enforce_eager captures no CUDA graphs.",
    )
    assert parse("--kv-cache-memory-bytes 8G --gpu-memory-utilization 0.9").warnings == (
        "gpu_memory_utilization changes nothing here: kv_cache_memory_bytes replaces it.",
    )
    assert parse("--dtype half").warnings == ("--dtype half changes nothing here: types of 16 bits cost the same.",)
    assert parse("-cc.use_inductor=true").warnings == ("use_inductor of -cc.use_inductor changes nothing here.",)


def test_no_flag_stands_in_two_tables() -> None:
    """A flag means one thing, and short names point to known ones."""
    tables = (ENGINE_FLAGS, OTHER_FLAGS, UNSIMULATED, APPROXIMATED, IGNORED)
    names = [name for table in tables for name in table]
    assert len(names) == len(set(names))
    assert all(arity_of(name) for name in SHORT_FLAGS.values())


# --- config files


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_config_file_holds_flags(tmp_path: Path) -> None:
    """Keys are flag names, with switches, lists and nested configurations as YAML has them."""
    path = write(
        tmp_path / "serve.yaml",
        """
        model: Qwen/Qwen3-8B
        max-num-seqs: 64
        max_model_len: 8K
        gpu-memory-utilization: 0.8
        enable-prefix-caching: false
        enforce-eager: false
        cudagraph-capture-sizes: [1, 2, 4]
        compilation-config: {cudagraph_mode: FULL}
        port: 8000
        quantization: null
        """,
    )
    parsed = parse_engine_args(["--config", str(path)])
    assert parsed.model == "Qwen/Qwen3-8B"
    assert parsed.engine == EngineConfig(
        max_num_seqs=64,
        max_model_len=8192,
        gpu_memory_utilization=0.8,
        enable_prefix_caching=False,
        cudagraph_capture_sizes=(1, 2, 4),
        cudagraph_mode="FULL",
    )
    assert parsed.warnings == (f"{path}: port changes nothing here.",)


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    """Wherever --config stands, and for the model too."""
    path = write(tmp_path / "serve.yaml", "model: A\nmax-num-seqs: 64\nblock-size: 32\n")
    other = write(tmp_path / "other.yaml", "max-num-seqs: 1\nblock-size: 1\n")
    parsed = parse_serve_command(f"vllm serve B --max-num-seqs 8 --config {other} --config {path}")
    assert parsed.model == "B"
    assert parsed.engine == EngineConfig(max_num_seqs=8, block_size=32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("max-num-seq: 8", r"serve.yaml: max-num-seq is not a flag of vllm serve\. Did you mean --max-num-seqs"),
        ("max-num-seqs: many", r"serve.yaml: max-num-seqs must be a whole number"),
        ("enforce-eager: 3", r"serve.yaml: enforce-eager is a switch without a value, got '3'"),
        (
            "headless: true\nenable-elastic-ep: true",
            r"serve.yaml: enable-elastic-ep True asks for expert parallelism, which is not simulated",
        ),
        ("max-num-seqs: []", r"serve.yaml: max-num-seqs needs a value"),
        ("config: other.yaml", r"serve.yaml: config must be given on the command line"),
        ("- max-num-seqs", r"serve.yaml: must hold flag names with their values"),
        ("8: 9", r"serve.yaml: must hold flag names with their values"),
        ("", r"serve.yaml: must hold flag names with their values"),
        ("a: [", r"serve.yaml: is not valid YAML"),
    ],
)
def test_a_bad_config_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    """With the file, the key and the rule."""
    path = write(tmp_path / "serve.yaml", content)
    with pytest.raises(ConfigError, match=message):
        parse_engine_args(["--config", str(path)])


def test_a_config_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Absent, or not text."""
    with pytest.raises(ConfigError, match=r"absent.yaml: cannot be read \(No such file or directory\)"):
        parse_engine_args(["--config", str(tmp_path / "absent.yaml")])
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(ConfigError, match=r"binary.yaml: must be a YAML file"):
        parse_engine_args(["--config", str(tmp_path / "binary.yaml")])


# --- and back


def test_only_what_differs_is_written() -> None:
    """A line to paste, quoted where the shell needs it."""
    assert serve_command("Qwen/Qwen3-8B", EngineConfig()) == "vllm serve Qwen/Qwen3-8B"
    engine = EngineConfig(
        max_num_seqs=64, enable_prefix_caching=False, enforce_eager=True, cudagraph_capture_sizes=(1, 2)
    )
    assert serve_command("my models/m", engine) == (
        "vllm serve 'my models/m' --max-num-seqs 64 --no-enable-prefix-caching --enforce-eager --cudagraph-capture-sizes 1 2"
    )


COUNTS = st.none() | st.integers(1, 10**9)
SWITCH = st.none() | st.booleans()
ENGINES = st.builds(
    EngineConfig,
    tensor_parallel_size=st.integers(1, 64),
    max_model_len=st.none() | st.just("auto") | st.integers(2, 10**7),
    max_num_seqs=COUNTS,
    max_num_batched_tokens=COUNTS,
    max_num_scheduled_tokens=COUNTS,
    max_num_active_seqs=COUNTS,
    max_num_queued_reqs=COUNTS,
    max_num_queued_tokens=COUNTS,
    gpu_memory_utilization=st.none() | st.floats(0, 1, exclude_min=True),
    kv_cache_memory_bytes=COUNTS,
    num_gpu_blocks_override=st.none() | st.integers(2, 10**9),
    kv_offloading_size=st.none() | st.floats(0, 10**6),
    block_size=st.none() | st.sampled_from(BLOCK_SIZES),
    kv_cache_dtype=st.sampled_from(["auto", *KV_CACHE_DTYPE_BYTES]),
    quantization=st.none() | st.sampled_from(["fp8", "awq"]),
    enable_prefix_caching=SWITCH,
    enable_chunked_prefill=SWITCH,
    scheduling_policy=st.sampled_from(["fcfs", "priority"]),
    async_scheduling=SWITCH,
    long_prefill_token_threshold=st.integers(0, 10**6),
    long_prefill_token_threshold_adaptive=st.booleans(),
    scheduler_reserve_full_isl=SWITCH,
    watermark=st.floats(0, 1, exclude_max=True),
    enforce_eager=st.booleans(),
    cudagraph_mode=st.none() | st.sampled_from(get_args(CudagraphMode)),
    cudagraph_capture_sizes=st.none() | st.sets(st.integers(1, 2048), min_size=1).map(tuple),
    max_cudagraph_capture_size=COUNTS,
    performance_mode=st.sampled_from(get_args(PerformanceMode)),
)


@given(engine=ENGINES, model=st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1))
def test_a_written_line_reads_back(engine: EngineConfig, model: str) -> None:
    """serve_command and parse_serve_command are each other's inverse, whatever the arguments and the model's path."""
    name = f"m{model}"
    parsed = parse_serve_command(serve_command(name, engine))
    assert (parsed.model, parsed.engine, parsed.vllm_version) == (name, engine, None)


@pytest.mark.parametrize(
    "line",
    [
        "--kv-offloading-size 20",
        "--kv-offloading-size 20 --kv-offloading-backend native",
        """--kv-transfer-config {"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":21474836480,"eviction_policy":"lru"}}""",
    ],
)
def test_host_memory_for_kv_is_an_argument(line: str) -> None:
    """Two ways of vLLM to say the same."""
    assert parse(line).engine == EngineConfig(kv_offloading_size=20)


@pytest.mark.parametrize(
    "line",
    [
        """--kv-offloading-size 20 --kv-transfer-config {"kv_connector_extra_config":{"eviction_policy":"arc"}}""",
        """--kv-transfer-config {"kv_connector":"OffloadingConnector","kv_connector_extra_config":{"cpu_bytes_to_use":21474836480,"eviction_policy":"arc"}}""",
    ],
)
def test_an_eviction_policy_is_one_of_the_connector(line: str) -> None:
    """Beside vLLM's own flag for the size, or in one with it; the line that is given back says the same."""
    engine = EngineConfig(kv_offloading_size=20, eviction_policy="arc")
    assert parse(line).engine == engine
    assert parse_serve_command(serve_command("M", engine)).engine == engine


def test_eviction_policies_have_names_and_a_version() -> None:
    """vLLM's own; one without host memory evicts nothing."""
    with pytest.raises(ConfigError, match=r"^eviction_policy must be one of lru, arc, got 'mru'"):
        EngineConfig(kv_offloading_size=20, eviction_policy="mru")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"for the GPU's cached blocks give prefix_cache_eviction lfu\.$"):
        EngineConfig(eviction_policy="lfu")  # type: ignore[arg-type]
    assert parse('--kv-transfer-config {"kv_connector_extra_config":{"eviction_policy":"arc"}}').warnings == (
        "eviction_policy changes nothing here: without kv_offloading_size no KV is in host memory.",
    )
    with pytest.raises(ConfigError, match=r"^eviction_policy is unknown to vLLM 0\.11\.1, it exists since 0\.11\.2"):
        deploy("Llama-3.1-8B", "h100-sxm", EngineConfig(eviction_policy="arc"), vllm_version="0.11.1")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{}", "is simulated for the OffloadingConnector, got {}; KV between engines is asked for by the roles"),
        ('{"kv_connector":"NixlConnector"}', "is simulated for the OffloadingConnector, got {'kv_connector'"),
        ('{"kv_connector":"OffloadingConnector"}', "needs a whole number of bytes as cpu_bytes_to_use .*, got None"),
        (
            '{"kv_connector":"OffloadingConnector","kv_connector_extra_config":{"cpu_bytes_to_use":1,"store_threshold":2}}',
            "store_threshold 2 is not simulated; leave it out",
        ),
    ],
)
def test_other_transfers_of_kv_are_refused(config: str, message: str) -> None:
    """Other connectors, a size that is missing, and what is not simulated of this one."""
    with pytest.raises(ConfigError, match=rf"^--kv-transfer-config:? {message}"):
        parse(f"--kv-transfer-config {config}")
