"""The plan of layer-wise offload as text and JSON."""

from collections.abc import Mapping

from sim.memory.layerwise_offload import LayerwisePlan, Saved, total
from sim.memory.weights import Part
from sim.report.tables import aligned
from sim.units import GIB


def layerwise_table(plan: LayerwisePlan, available_bytes: int, offers: Mapping[str, Saved], *, explain: bool) -> str:
    """GiB by part, whether the GPU's `available_bytes` hold the peak, and what further savings would save."""
    rows = [("loaded", "weights", plan.weights_bytes / GIB, "as loaded"), *_rows(plan)]
    header = ("", "", "GiB", "formula")
    table = aligned(header if explain else header[:3], [row if explain else row[:3] for row in rows])
    verdict = "fits" if fits(plan, available_bytes) else "does not fit"
    return (
        f"{table}\n\nGPU: {plan.gpu_bytes / GIB:.2f} GiB at the peak of {available_bytes / GIB:.2f} GiB allowed; "
        f"{verdict}\nCPU: {plan.cpu_bytes / GIB:.2f} GiB pinned" + (f"\n\n{_offers(offers)}" if offers else "")
    )


def _offers(offers: Mapping[str, Saved]) -> str:
    header = ("--savings", "prefill peak GiB", "decode peak GiB", "allocated a decode GiB")
    rows = [(name, *(round(-count / GIB, 2) + 0.0 for count in saved)) for name, saved in offers.items()]  # no -0.00
    return aligned(header, rows)


def _rows(plan: LayerwisePlan) -> list[tuple[str, str, float, str]]:
    groups: tuple[tuple[str, tuple[Part, ...]], ...] = (
        ("loaded", (plan.rotary_table,)),
        ("allocated once", plan.preallocated),
        ("through prefill", plan.prefill_persistent),
        ("prefill peak", plan.prefill_temporaries),
        ("decode peak", plan.decode_temporaries),
        ("CPU", plan.cpu),
    )
    return [(group, part.name, part.num_bytes / GIB, part.formula) for group, parts in groups for part in parts]


def fits(plan: LayerwisePlan, available_bytes: int) -> bool:
    return plan.gpu_bytes <= available_bytes


def layerwise_json(plan: LayerwisePlan, available_bytes: int, offers: Mapping[str, Saved]) -> dict[str, object]:
    """All in bytes."""
    return {
        "offload": "layerwise",
        "weights_bytes": plan.weights_bytes,
        "rotary_table_bytes": plan.rotary_table.num_bytes,
        "preallocated_bytes": plan.preallocated_bytes,
        "prefill_persistent_bytes": total(plan.prefill_persistent),
        "prefill_peak_bytes": plan.prefill_peak_bytes,
        "decode_peak_bytes": plan.decode_peak_bytes,
        "gpu_bytes": plan.gpu_bytes,
        "cpu_bytes": plan.cpu_bytes,
        "available_bytes": available_bytes,
        "feasible": fits(plan, available_bytes),
        "savings": {name: saved._asdict() for name, saved in offers.items()},
    }
