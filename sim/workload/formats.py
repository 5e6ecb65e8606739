"""The formats of tables, each told by a column that no format behind it has."""

from sim.workload.azure import AZURE
from sim.workload.bailian import BAILIAN
from sim.workload.burstgpt import BURSTGPT
from sim.workload.guidellm import GUIDELLM
from sim.workload.lifecycle import LIFECYCLE
from sim.workload.llmservingsim import LLMSERVINGSIM
from sim.workload.mooncake import MOONCAKE
from sim.workload.native import NATIVE
from sim.workload.otlp import OTLP
from sim.workload.servegen import SERVEGEN, SERVEGEN_BATCH
from sim.workload.table import Sheet
from sim.workload.trace_builder import Format
from sim.workload.vllm_log import VLLM_LOG

FORMATS = (
    AZURE,
    BURSTGPT,
    BAILIAN,
    SERVEGEN,
    SERVEGEN_BATCH,
    LLMSERVINGSIM,
    OTLP,
    LIFECYCLE,
    GUIDELLM,
    VLLM_LOG,
    MOONCAKE,
)


def told_format(sheet: Sheet) -> Format:
    """The format that has a column of the sheet's; the native one where its own columns are there, or none's."""
    if set(NATIVE.marks) <= set(sheet.columns):
        return NATIVE
    return next((form for form in FORMATS if not set(form.marks).isdisjoint(sheet.columns)), NATIVE)
