"""The room that a replica has for LoRA adapters, and how long it takes to bring one in."""

from dataclasses import replace

from sim.cluster.cold_start import StartUp
from sim.memory.transfers import copied_bytes_per_s
from sim.memory.weights import adapter_bytes
from sim.specs.engine import ResolvedEngine
from sim.specs.hardware import HardwareProfile
from sim.specs.lora import AdapterLayout, LoraSlots
from sim.specs.model import ModelSpec
from sim.specs.stages import Stage

COPIES = 2  # of each pair of matrices, A and B
DUMMY_RANK = 8
"""Of the adapters of a dummy batch, or less where adapters have less (vllm/v1/worker/lora_model_runner_mixin.py)."""
DUMMY_BYTES_PER_S = 1e9
"""At which the host makes them, tensor by tensor, and stacks them: vLLM 0.32's own code (create_dummy_lora_weights, pack_moe) took a
second of an AMD EPYC's CPU time for 0.9 to 1.7 GB, of 8 to 128 experts a layer and without pinned memory."""


def lora_slots(model: ModelSpec, gpu: HardwareProfile, engine: ResolvedEngine, stage: Stage) -> LoraSlots:
    """Adapters are taken to have the largest rank and all matrices that there is room for.

    Each GPU copies its share over PCIe, matrix by matrix, at a launch each; it reads from storage as fast as the weights of a
    replica that starts (cold_starts.json). Of a dummy batch, whose adapters are all the same, one is made.
    """
    num_bytes = adapter_bytes(model, engine, stage)
    num_pairs = AdapterLayout.of(engine).pairs(stage.distinct_layers(model)).total()
    return LoraSlots(
        engine.max_loras,
        engine.max_cpu_loras or engine.max_loras,
        copy_s=num_bytes / copied_bytes_per_s(gpu) + COPIES * num_pairs * gpu.operators.host.launch_s,
        read_s=StartUp().phases(num_bytes, enforce_eager=True)["weights_s"],
        dummy_s=adapter_bytes(model, replace(engine, max_lora_rank=min(DUMMY_RANK, engine.max_lora_rank)), stage)
        / DUMMY_BYTES_PER_S,
    )
