"""Bytes of a trace file in chunks: plain or gzip, told apart by the first bytes and never by the name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from isal import isal_zlib

from shardscope.errors import DamagedTrace, EmptyTrace, TraceError
from shardscope.trace import progress

__all__ = ["CHUNK_BYTES", "Source"]

CHUNK_BYTES = 1 << 19
_INFLATE_BYTES = 1 << 16  # deflate grows at most 1032-fold, so one piece stays below 68 MB
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WBITS = 31
_GZIP_ERROR: Any = isal_zlib.error
_BOM = b"\xef\xbb\xbf"


class Source:
    """Iterates over the uncompressed bytes of one file.

    After the iteration `cut` says what is lost at the end (None: nothing). Bytes before the loss are delivered, so a
    caller that salvages gets all there is. Raises TraceError when the file cannot be opened, EmptyTrace when it holds
    no byte, DamagedTrace when compressed data are corrupt from the start.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cut: str | None = None
        self.position = 0  # uncompressed bytes delivered
        self._read = 0  # file bytes read

    def __iter__(self) -> Iterator[bytes]:
        if self.path.exists() and not self.path.is_file():
            # A pipe would be waited for without end.
            raise TraceError(f"{self.path}: not a regular file; name a trace that is written to disk")
        try:
            with self.path.open("rb") as file:
                first = file.read(CHUNK_BYTES)
                if not first:
                    raise EmptyTrace(f"{self.path}: no timed events, the file is empty; write the trace again")
                chunks = self._chunks(first, file)
                inflated = self._inflate(chunks) if first[:2] == _GZIP_MAGIC else chunks
                for chunk in inflated:
                    data = chunk.removeprefix(_BOM) if self.position == 0 else chunk
                    self.position += len(chunk)
                    yield data
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read ({error.strerror or error})") from error

    def _chunks(self, first: bytes, file: BinaryIO) -> Iterator[bytes]:
        chunk = first
        while chunk:
            self._read += len(chunk)
            progress.advance(len(chunk))
            yield chunk
            chunk = file.read(CHUNK_BYTES)

    def _inflate(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        stream = isal_zlib.decompressobj(wbits=_GZIP_WBITS)
        pieces = (chunk[at : at + _INFLATE_BYTES] for chunk in chunks for at in range(0, len(chunk), _INFLATE_BYTES))
        for piece in pieces:
            data = piece
            while data:
                if stream.eof:  # another member follows, perhaps after padding
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    stream = isal_zlib.decompressobj(wbits=_GZIP_WBITS)
                try:
                    out = stream.decompress(data)
                except _GZIP_ERROR as error:
                    if not self.position:
                        raise DamagedTrace(f"{self.path}: gzip data are corrupt from the start ({error})") from error
                    self.cut = f"gzip data are corrupt near byte {self._read} ({error})"
                    return
                data = stream.unused_data if stream.eof else b""
                if out:
                    yield out
        if not stream.eof:
            self.cut = f"the gzip stream ends after {self._read} bytes, before its end"
