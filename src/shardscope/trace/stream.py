"""A trace file as batches of typed events in bounded memory, with the metadata around them."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from shardscope.errors import DamagedTrace
from shardscope.trace.events import Class, Event, class_of
from shardscope.trace.repair import repair
from shardscope.trace.source import Source

__all__ = ["EventStream"]

_BATCH_BYTES = 1 << 19  # its events fit into a processor's cache
_TAIL_BYTES = 1 << 26  # metadata after the events; more than that is no metadata
_OPEN = re.compile(rb'"traceEvents"\s*:\s*\[')
_BOUNDARY = re.compile(rb'\}\s*,(?=\s*\{\s*"(?:ph|name|cat|pid|tid|ts|id|dur|args|s|bp)")')
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_RAW_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
_FAULTS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class EventStream:
    """Iterate once for lists of events; then `metadata`, `repairs` and `cut` are filled.

    `cut` says what is missing at the end of the file, None if it is whole. Raises DamagedTrace, naming the file and the
    position, when text in the middle cannot be read. `event`: the struct that an event is decoded as, where
    attribution's is not what is wanted.
    """

    def __init__(self, path: Path, event: type[Any] = Event) -> None:
        self._list_decoder = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]
        self._event_decoder = msgspec.json.Decoder(event)
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.repairs: Counter[str] = Counter()
        self.cut: str | None = None
        self._head = b""
        self._tail = b""
        self._source = Source(path)
        self._limit = _BATCH_BYTES
        self._ended = False

    def __iter__(self) -> Iterator[list[Any]]:
        chunks = iter(self._source)
        buffer = self._read_head(chunks)
        if buffer is None:
            self._finish_metadata()
            return
        while not self._ended:
            while len(buffer) < self._limit:
                chunk = next(chunks, b"")
                if not chunk:
                    break
                buffer += chunk
            else:
                batch, buffer = self._middle(buffer)
                if batch:
                    yield batch
                del batch
                continue
            batch, buffer = self._last(buffer)
            if batch:
                yield batch
            break
        self._tail = buffer
        for chunk in chunks:
            if len(self._tail) < _TAIL_BYTES:
                self._tail += chunk
        self.cut = self._source.cut or self.cut
        self._finish_metadata()

    def _read_head(self, chunks: Iterator[bytes]) -> bytes | None:
        """Read up to the first event; what follows it in the buffer. None: the file has no list of events."""
        buffer = b""
        for chunk in chunks:
            buffer += chunk
            if buffer.lstrip()[:1] == b"[":  # the array itself is the document
                self._head = b'{"traceEvents": ['
                return buffer.lstrip()[1:]
            found = _OPEN.search(buffer)
            if found:
                self._head = buffer[: found.end()]
                return buffer[found.end() :]
        self._head = buffer
        self.cut = self._source.cut
        return None

    def _middle(self, buffer: bytes) -> tuple[list[Any], bytes]:
        """Events up to the last boundary in the buffer, and the rest."""
        for window in (1 << 12, 1 << 16, len(buffer)):
            start = max(0, len(buffer) - window)
            cuts = [match.end() for match in _BOUNDARY.finditer(buffer, start)]
            for cut in reversed(cuts[-3:]):
                batch = self._decode(buffer, cut - 1)
                if batch is not None:
                    return batch, buffer[cut:]
        return self._by_scanning(buffer, at_end=False)

    def _last(self, buffer: bytes) -> tuple[list[Any], bytes]:
        """Events up to the end of the array, and what follows it."""
        close = buffer.rfind(b"]")
        if close >= 0:
            batch = self._decode(buffer, close)
            if batch is not None:
                self._ended = True
                return batch, buffer[close + 1 :]
        return self._by_scanning(buffer, at_end=True)

    def _decode(self, buffer: bytes, stop: int) -> list[Any] | None:
        """The events of a whole number of elements, up to `stop`, repaired if need be; None if this is not that."""
        text = b"".join((b"[", memoryview(buffer)[:stop], b"]"))
        try:
            return self._list_decoder.decode(text)
        except _FAULTS:
            pass
        try:
            return self._one_by_one(text)
        except _FAULTS:
            pass
        mended, counts = repair(text)
        if not counts:
            return None
        try:
            batch = self._one_by_one(mended)
        except _FAULTS:
            return None
        self.repairs += counts
        return batch

    def _one_by_one(self, text: bytes) -> list[Any]:
        """Valid JSON, but some element is no event: leave that one out, counted if it could have been time."""
        batch = []
        for raw in _RAW_DECODER.decode(text):
            try:
                batch.append(self._event_decoder.decode(raw))
            except msgspec.ValidationError:
                loose = msgspec.json.decode(raw)
                category = loose.get("cat") if isinstance(loose, dict) else None
                if not isinstance(category, str) or class_of(category) is not Class.DROPPED:
                    self.repairs["malformed_event"] += 1
        return batch

    def _by_scanning(self, buffer: bytes, *, at_end: bool) -> tuple[list[Any], bytes]:
        """Find element boundaries token by token: for compact or odd layouts, metadata behind the events, and cuts."""
        depth = 0
        last = 0  # end of the last whole element
        for token in _TOKEN.finditer(buffer):
            symbol = token[0]
            if symbol in (b"{", b"["):
                depth += 1
            elif symbol in (b"}", b"]"):
                depth -= 1
                if depth < 0:
                    batch = self._decode(buffer, token.start())
                    if batch is None:
                        break
                    self._ended = True
                    return batch, buffer[token.end() :]
                if depth == 0:
                    last = token.end()
        batch = self._decode(buffer, last) if last else []
        if batch is None:
            raise self._fault()
        rest = buffer[last:].lstrip().removeprefix(b",")
        if at_end:
            self.cut = f"cut at byte {self._source.position}, inside the list of events"
            return batch, b""
        if not batch:  # one element is larger than the buffer, or its text never closes
            self._limit *= 2
            if self._limit > _TAIL_BYTES:
                raise self._fault()
        return batch, rest

    def _fault(self) -> DamagedTrace:
        where = f"{self.path}: unreadable near byte {self._source.position}"
        if self._writers() > 1:
            return DamagedTrace(f"{where}: more than one writer wrote into this file; give each rank its own")
        return DamagedTrace(f"{where}: no valid JSON; write the trace again")

    def _writers(self) -> int:
        """How many lists of events begin in what has been read, found by reading it again."""
        again = Source(self.path)
        count = 0
        for chunk in again:
            count += chunk.count(b'"traceEvents"')
            if again.position >= self._source.position:
                break
        return count

    def _finish_metadata(self) -> None:
        tail = self._tail.strip()
        text = self._head + b"]" + tail if _OPEN.search(self._head) else self._head
        for candidate in (text, text + b"}", self._head + b"]}"):
            try:
                self.metadata = _as_dict(msgspec.json.decode(candidate))
            except _FAULTS:
                mended, counts = repair(candidate)
                try:
                    self.metadata = _as_dict(msgspec.json.decode(mended))
                except _FAULTS:
                    continue
                self.repairs += counts
            if candidate is not text and self._ended and not self.cut and tail not in (b"", b","):
                raise self._fault()  # the array closed, but what follows is not the rest of one document
            return
        if self._ended:
            raise self._fault()


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
