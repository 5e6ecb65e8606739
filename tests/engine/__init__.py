"""How requests move, asked of every engine as a black box: worked examples and laws.

The worked examples are the numbered statements of the notes on vLLM's behaviour, each produced by vLLM's own scheduler.
Their letters are requests ("A5" has a prompt of 5 tokens), s1, s2, ... are steps. Not modelled, hence not here: prefill
cadence (29), stop tokens (31), pipeline stages (34, 35). Statements 39 to 42 are about memory, graphs and arrivals.
"""
