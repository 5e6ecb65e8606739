"""What an engine of a fleet does of a request, and what it is to those who move KV."""

from typing import Literal, Protocol

Role = Literal["both", "prefill", "decode"]
"""All of a request, its prompt for others, or its answer and so much of its prompt as nobody else does."""


class Engine(Protocol):
    """It has KV, and may sleep while it waits for some, or for some to be fetched."""

    def wake(self) -> None: ...
