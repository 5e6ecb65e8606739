"""CPU tiers of few chunks, whose copies take hardly any time or some."""

from hypothesis import strategies as st

from sim.specs.kv_transfer import OffloadConfig

tiers = st.builds(
    OffloadConfig,
    cpu_chunks=st.integers(1, 40),
    eviction_policy=st.sampled_from(("lru", "arc")),
    load_base_s=st.integers(0, 5),
    load_block_s=st.integers(0, 5),
    store_base_s=st.integers(0, 5),
    store_block_s=st.integers(0, 5),
    reports_at_start=st.just(True),
    block_bytes=st.just(10),
)
