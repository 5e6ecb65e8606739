"""Flags of layer-wise offload, which `memory` plans and `simulate` replays."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from sim.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LayerwiseFlags:
    """Whether one request at a time has its KV cache in CPU memory, and how the buffers for it are cut."""

    offload: Annotated[
        Literal["layerwise"] | None,
        typer.Option(help="One long request at a time, its KV cache in CPU memory: nano-vllm's, not vLLM's."),
    ] = None
    num_kv_buffers: Annotated[
        int | None, typer.Option(min=1, help="Layers in the ring of --offload layerwise, 4 when absent.")
    ] = None
    offload_block_size: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a block of --offload layerwise, 1024 when absent.")
    ] = None
    num_cpu_blocks: Annotated[
        int | None,
        typer.Option(
            min=1, help="Pinned blocks of --offload layerwise, as many as the longest request has when absent."
        ),
    ] = None
    savings: Annotated[
        str | None,
        typer.Option(
            help="Of --offload layerwise: kv_joined, lengths_kept, rope_in_place, mlp_chunk_tokens[=N], or all."
        ),
    ] = None

    def settings(self) -> dict[str, Any] | None:
        """What is given for layer-wise offload, None without it. Raises ConfigError for a flag that changes nothing."""
        from sim.memory.layerwise_offload import Savings

        given: dict[str, Any] = {
            "num_kv_buffers": self.num_kv_buffers,
            "block_size": self.offload_block_size,
            "num_cpu_blocks": self.num_cpu_blocks,
            "savings": self.savings and Savings.parse(self.savings),
        }
        given = {name: value for name, value in given.items() if value is not None}
        if self.offload is None and given:
            flag = {"block_size": "offload_block_size"}.get(name := next(iter(given)), name).replace("_", "-")
            raise ConfigError(f"--{flag} changes nothing without --offload layerwise; leave it out.")
        return given if self.offload else None
