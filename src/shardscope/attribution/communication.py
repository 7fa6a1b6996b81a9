"""One communication operation of one rank, as every later stage sees it."""

from dataclasses import dataclass, field

from shardscope.attribution.intervals import EMPTY, IntArray, clip, single, union
from shardscope.vocabulary import Axis, Evidence, Kind

__all__ = ["Communication", "Direction"]

Direction = str  # "send" or "receive"
_FAR = 1 << 62


@dataclass(slots=True, eq=False)
class Communication:
    """A collective, or one side of a send/receive pair. Times are ns on the rank's own clock.

    `busy`: the set of instants it occupies. `arrival`: when this rank was ready for the others. `transfers` and `waits`
    split `busy`; both None until matching knows (then busy = transfers ∪ waits, disjoint).
    """

    kind: Kind
    evidence: Evidence
    arrival: int
    end: int
    busy: IntArray
    name: str = ""
    step: int | None = None  # position in the rank's list of steps
    group: tuple[int, ...] | None = None  # global ranks
    group_name: str = ""
    group_size: int | None = None
    axis: Axis = Axis.UNKNOWN
    bytes: int | None = None
    sequence: int | None = None
    comms_id: str | None = None
    root: int | None = None  # global rank, for rooted operations
    synchronising: bool = True  # no rank can end before the last arrives
    direction: Direction | None = None  # send/receive only
    peer: int | None = None  # global rank
    tag: int | None = None
    posted: int | None = None  # send/receive on gloo: start of its span
    gap: IntArray = field(default_factory=lambda: EMPTY)  # send/receive on gloo: the idle time its end closes
    inside: IntArray = field(default_factory=lambda: EMPTY)  # send/receive on gloo: the call itself
    thread: int = -1
    order: int = 0  # start of the causing call, for k-th matching
    call_end: int = 0  # end of the causing call
    dims: frozenset[int] = frozenset()  # element counts of its tensors, where recorded
    element_type: str = ""
    peer_is_global: bool = False
    spans: int = 0
    transfers: IntArray | None = None
    waits: IntArray | None = None
    bounds: bool = False  # the split is a bound, not exact

    def extend(self, *pieces: IntArray) -> None:
        """Add instants to `busy` and move `end`."""
        self.busy = union(self.busy, *pieces)
        self.end = max(self.end, int(self.busy[-1, 1])) if len(self.busy) else self.end

    def split_at(self, instant: int) -> None:
        """Waiting before `instant`, transferring from it on."""
        if len(self.busy) == 1:  # nearly always, and then cheap
            start, end = self.busy[0].tolist()
            middle = min(max(instant, start), end)
            self.waits, self.transfers = single(start, middle), single(middle, end)
            return
        self.waits = clip(self.busy, -_FAR, instant)
        self.transfers = clip(self.busy, instant, _FAR)
