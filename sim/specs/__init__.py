"""Facts and arguments: models, GPUs, engine arguments, and the rules and defaults of vLLM's versions."""
