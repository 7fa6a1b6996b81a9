"""The summary step of a rank as a sequence of intervals that fill it without gap or overlap."""

from collections.abc import Iterator
from typing import NamedTuple

from shardscope.attribution.ledger import RowParts
from shardscope.attribution.share import TRANSFER, WAIT
from shardscope.errors import ResultError

__all__ = ["Piece", "partition"]

_SUFFIX = {TRANSFER: ":transfer", WAIT: ":wait"}


class Piece(NamedTuple):
    """[start, end) on the analysed clock. Category: compute, copies, bubble, host_other, or a kind of communication
    with ":transfer" or ":wait" (neither where that is unknown)."""

    start: int
    end: int
    category: str


def partition(part: RowParts) -> list[Piece]:
    """The row's parts in order of time.

    Where several kinds share a stretch they follow each other in it, each as long as its share, so that the lengths per
    category are those of the ledger. Raises ResultError if the pieces do not fill the window.
    """
    pieces = [Piece(start, end, "compute") for start, end in part.compute.tolist()]
    pieces += [Piece(start, end, "copies") for start, end in part.copies.tolist()]
    pieces += [Piece(start, end, "bubble") for start, end in part.bubble_idle.tolist()]
    pieces += [Piece(start, end, "host_other") for start, end in part.host.tolist()]
    pieces += _shared(part)
    pieces.sort()
    at = part.row.start_ns
    for piece in pieces:
        if piece.start != at:
            raise ResultError(
                f"step {part.row.step}: the intervals leave a gap or overlap at {at} ns; please report it"
            )
        at = piece.end
    if at != part.row.start_ns + part.row.window_ns:
        raise ResultError(f"step {part.row.step}: the intervals end at {at} ns, before the step; please report it")
    return _joined(pieces)


def _shared(part: RowParts) -> Iterator[Piece]:
    shares = part.shares
    for stretch in range(len(shares.left)):
        at = int(shares.left[stretch])
        for i, label in enumerate(shares.labels):
            spent = int(shares.ns[i, stretch])
            if spent:
                category = f"{label.kind}{_SUFFIX.get(int(shares.state[i, stretch]), '')}"
                yield Piece(at, at + spent, "bubble" if part.moved[i, stretch] else category)
                at += spent


def _joined(pieces: list[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].category == piece.category:
            joined[-1] = Piece(joined[-1].start, piece.end, piece.category)
        elif piece.end > piece.start:
            joined.append(piece)
    return joined
