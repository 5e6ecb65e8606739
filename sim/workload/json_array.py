"""The objects of a JSON array, read item by item: files of conversations and of measured requests have hundreds of megabytes."""

import io
import json
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import Any

from sim.errors import TraceError
from sim.units import MIB

BUFFER_BYTES = 65_536
MAX_ITEM_CHARACTERS = 16 * MIB  # a request with its texts and the time of each token; as a line may have
_SPACE = re.compile(r"\s*")


def array_items(stream: io.BufferedReader, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each with its number, from 1 on. Raises TraceError, naming the item, for what is no object and where the array is cut short."""
    text = _Text(stream, name)
    text.take("[")
    number = 0
    while not text.take("]"):
        if number and not text.take(","):
            raise text.fault(number, "must be followed by a comma or the end of the array")
        number += 1
        value = text.value(number)
        if not isinstance(value, dict):
            raise text.fault(number, f"must be a JSON object, got {type(value).__name__}")
        yield number, value
    if not number:
        raise TraceError(f"{name}: the array is empty; a trace needs at least one request.")
    if text.has_more():
        raise text.fault(number, "must be the last thing in the file, with the array's end")


class _Text:
    """What was read of the array and is not used up."""

    def __init__(self, stream: io.BufferedReader, name: str) -> None:
        self._stream = stream
        self._decoder = getincrementaldecoder("utf-8-sig")()
        self._name = name
        self._text = ""
        self._at = 0

    def has_more(self) -> bool:
        """Whether anything but space is left, which then comes next."""
        while True:
            self._at = self._end_of_space()
            if self._at < len(self._text):
                return True
            if not self._read():
                return False

    def take(self, mark: str) -> bool:
        """Whether that mark comes next, which is then used up."""
        found = self.has_more() and self._text.startswith(mark, self._at)
        self._at += found
        return found

    def value(self, number: int) -> Any:
        while self.has_more():
            try:
                value, self._at = json.JSONDecoder().raw_decode(self._text, self._at)
            except (ValueError, RecursionError) as error:
                if len(self._text) - self._at > MAX_ITEM_CHARACTERS or not self._read():
                    raise self.fault(number, f"must be a complete JSON object, got one that is not ({error})") from None
            else:
                return value
        raise self.fault(number, "must be a complete JSON object, got nothing")

    def fault(self, number: int, rule: str) -> TraceError:
        return TraceError(f"{self._name}, item {number}: {rule}; write an array of objects, or one object a line.")

    def _end_of_space(self) -> int:
        found = _SPACE.match(self._text, self._at)
        return found.end() if found else self._at

    def _read(self) -> bool:
        """As much again as there is, so that a long item is not looked at too often."""
        data = self._stream.read(max(BUFFER_BYTES, len(self._text) - self._at))
        try:
            self._text, self._at = self._text[self._at :] + self._decoder.decode(data, final=not data), 0
        except UnicodeDecodeError:
            raise TraceError(f"{self._name}: text must be UTF-8, got other bytes; save it as UTF-8.") from None
        return bool(data)
