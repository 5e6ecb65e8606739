"""vLLM's own log of requests, `--enable-log-requests`: `INFO 02-13 11:33:33 [logger.py:49] Received request ID: ...`.

vllm/entrypoints/logger.py, 0.2 to 0.33: the line has the `SamplingParams` and the LoRA request, up to 0.10 also `prompt_token_ids`; later these
stand in a line `Request ID details: ...` of VLLM_LOGGING_LEVEL=DEBUG. `--enable-log-outputs` adds `Generated response ID: ...` with
`output_token_ids`, or one such line for each streamed piece, of a request for several answers (`n`) for each of these. Times have no year and
whole seconds.
"""

import re
from collections.abc import Iterator
from datetime import datetime

from sim.workload.calls import Call, part_of, tokens_of
from sim.workload.table import Sheet
from sim.workload.trace_builder import Format, Part

LOG_LINE = "line of vLLM's log"
STAMP = r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) \[?[\w./]+:\d+\] "
RECEIVED = re.compile(STAMP + r"Received request (\S+): ")
DETAILS = re.compile(STAMP + r"Request (\S+) details: ")
GENERATED = re.compile(STAMP + r"Generated response (\S+?)( \(streaming delta\)| \(streaming complete\))?: output: ")
PROMPT_IDS = re.compile(r", prompt_token_ids: \[([\d, ]*)\](?=[,.])")
OUTPUT_IDS = re.compile(r", output_token_ids: [\[(]([\d, ]*)[\])], finish_reason: ")
LORA = re.compile(r"lora_request: LoRARequest\(lora_name='([^']*)'")
NUM_ANSWERS = re.compile(r"params: SamplingParams\(n=([1-9]\d{0,4}),")
LIMITS = re.compile(r"ignore_eos=(True|False), max_tokens=(\d{1,18})(?:, min_tokens=(\d{1,18}))?")
YEAR_S = 366 * 86_400


class _Log:
    """What its lines say of each request."""

    def __init__(self) -> None:
        self.received: dict[str, tuple[int, float, str]] = {}
        self.prompts: dict[str, list[int]] = {}
        self.outputs: dict[str, int] = {}
        self._several: set[str] = set()
        self._now_s = 0.0

    def take(self, place: int, line: str) -> None:
        if match := RECEIVED.search(line):
            self.received[match[6]] = (place, self._at(match), line)
            if num_answers(line) > 1:
                self._several |= {match[6], match[6].removesuffix("-0")}
            self._take_prompt(match[6], line)
        elif match := DETAILS.search(line):
            self._take_prompt(match[6], line)
        elif (match := GENERATED.search(line)) and (ids := _last(OUTPUT_IDS, line)):
            is_more = match[7] == " (streaming delta)" or (match[7] is None and match[6] in self._several)
            before = self.outputs.get(match[6], 0) if is_more else 0
            self.outputs[match[6]] = before + len(_tokens(ids[1]))

    def _take_prompt(self, request: str, line: str) -> None:
        if (ids := _last(PROMPT_IDS, line)) and ids[1]:
            self.prompts[request] = _tokens(ids[1])

    def _at(self, match: re.Match[str]) -> float:
        """Seconds since a New Year; a log that goes back by months goes on in the next."""
        month, day, hour, minute, second = map(int, match.groups()[:5])
        since = datetime(2000, month, day, hour, minute, second) - datetime(2000, 1, 1)  # noqa: DTZ001 - a leap year, in no zone
        at_s = since.total_seconds()
        while at_s < self._now_s - YEAR_S / 2:
            at_s += YEAR_S
        self._now_s = max(self._now_s, at_s)
        return self._now_s

    def output_of(self, request: str, line: str) -> int | None:
        """Of each answer, as generated in the mean, or as the request fixed it; None where the log does not say."""
        for name in (request, request.removesuffix("-0")):  # a completion of one prompt
            if name in self.outputs:
                return round(self.outputs[name] / num_answers(line))
        limits = LIMITS.search(line)
        if limits and (limits[1] == "True" or limits[2] == limits[3]):
            return int(limits[2])
        return None


def _parts(sheet: Sheet) -> Iterator[Part]:
    log = _Log()
    for place, row in sheet.rows:
        try:
            log.take(place, row[LOG_LINE])
        except ValueError as error:  # of a day that the calendar does not have
            raise sheet.fault(
                place, f"the log must have times such as 02-13 11:33:33 ({error}); mend the line."
            ) from None
    yield from part_of(list(_calls(sheet, log)))


VLLM_LOG = Format(
    "vllm log", (LOG_LINE,), _parts, row_is_request=False, in_order=False, from_first=True,
    note="its clock has whole seconds, so that requests of one second come at once, and where --max-log-len cuts prompts, they are as short here",
)  # fmt: skip


def _calls(sheet: Sheet, log: _Log) -> Iterator[Call]:
    for request, (place, at_s, line) in log.received.items():
        prompt, output = log.prompts.get(request), log.output_of(request, line)
        if prompt is None:
            sheet.leave_out(1, f"with no prompt_token_ids ({ADVICE})", "request")
        elif not output:
            sheet.leave_out(1, f"with no length of the output ({ADVICE})", "request")
        else:
            lora, n = LORA.search(line), num_answers(line)
            name = lora[1] if lora else ""
            output = tokens_of(sheet, place, "max_tokens", output)
            yield Call(place, at_s, len(prompt), output, n=n, request_id=request, lora_name=name, tokens=prompt)


ADVICE = "VLLM_LOGGING_LEVEL=DEBUG with --enable-log-requests and --enable-log-outputs has both"


def num_answers(line: str) -> int:
    """What a request asks for."""
    found = _last(NUM_ANSWERS, line)
    return int(found[1]) if found else 1


def _last(pattern: re.Pattern[str], line: str) -> re.Match[str] | None:
    """Its last place: a prompt or an answer, which stand before, may hold any text."""
    found = None
    for found in pattern.finditer(line):  # noqa: B007 - the last is wanted
        pass
    return found


def _tokens(ids: str) -> list[int]:
    return list(map(int, re.findall(r"\d{1,18}", ids)))
