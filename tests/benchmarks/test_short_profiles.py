"""What kernels that were never timed add to a forecast's band is what completed profiles are off by."""

from benchmarks.fit_bands import unfitted_kernels
from benchmarks.short_profiles import left_out
from sim.measure.confidence import known_evidence


def test_the_shipped_bands_are_those_of_the_profiles_left_out() -> None:
    """As much is covered as of served runs; a sibling's kernels are off by less."""
    shipped = known_evidence().kernels
    assert shipped == unfitted_kernels()
    errors = sorted(abs(error) for one in left_out() for error in (*one.decode, *one.prefill))
    covered = sum(error <= shipped["generic"] for error in errors) / len(errors)
    assert 0.88 < covered < 0.93  # as FITS has it for step times
    assert 0 < shipped["derived"] < shipped["generic"]
