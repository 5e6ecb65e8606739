"""What a run's LoRA adapters waited for."""

from typing import Any

from sim.engine.records import Records


def lora_figures(records: Records) -> dict[str, Any]:
    """`lora`; nothing where there are no adapters.

    `num_loads` adapters were brought into slots of the GPU, `num_reads` of them from storage; batches waited `load_s` for that,
    over all replicas, as far as nothing else ran.
    """
    found = records.lora
    if found is None:
        return {}
    return {"lora": {"num_loads": found.num_copies, "num_reads": found.num_reads, "load_s": found.load_s}}
