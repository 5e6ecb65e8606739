"""The memory of a GPU: weights, activations, CUDA graphs, and the KV cache that is left."""
