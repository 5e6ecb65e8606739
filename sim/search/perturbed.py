"""The ways in which step times are taken to be off when candidates are compared."""

from sim.measure.perturbed import Perturbation


def perturbations(band: float) -> tuple[Perturbation, ...]:
    """Decodes, then prefills, slower and faster by a share, as 0.1; faster is the inverse, so that no time falls to 0."""
    slower = 1 + band
    return (
        Perturbation(decode=slower),
        Perturbation(decode=1 / slower),
        Perturbation(prefill=slower),
        Perturbation(prefill=1 / slower),
    )
