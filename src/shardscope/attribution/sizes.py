"""Bytes of a communication: S of the bandwidth formulas, from element counts and types."""

from shardscope.attribution.communication import Communication
from shardscope.trace.events import Args
from shardscope.trace.table import integer
from shardscope.vocabulary import Kind

__all__ = ["element_bytes", "message_bytes", "metadata_bytes"]

_SIZES = {
    "float": 4, "float32": 4, "int": 4, "int32": 4, "uint32": 4, "complexhalf": 4,
    "double": 8, "float64": 8, "long": 8, "longint": 8, "int64": 8, "uint64": 8, "complexfloat": 8,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "shortint": 2, "int16": 2, "uint16": 2,
    "byte": 1, "char": 1, "unsignedchar": 1, "signedchar": 1, "int8": 1, "uint8": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "complexdouble": 16,
}  # fmt: skip
# Calls on lists name one rank's tensor; S is the array of all ranks.
_PER_RANK = ("c10d::allgather_", "c10d::reduce_scatter_")


def element_bytes(type_name: str) -> int | None:
    """Bytes of one element of a type as torch writes it ("float", "c10::BFloat16", "long int")."""
    return _SIZES.get(type_name.rsplit("::", 1)[-1].replace(" ", "").lower())


def message_bytes(call: Communication) -> int | None:
    """S of a CPU call: the buffer for all-reduce, broadcast and messages, the whole array for all-gather and
    reduce-scatter, the send buffer for all-to-all. None where shapes or types are not recorded."""
    size = element_bytes(call.element_type)
    if size is None or not call.dims or call.kind in (Kind.OTHER, Kind.UNKNOWN):
        return None
    elements = max(call.dims)
    if call.name in _PER_RANK:
        if call.group_size is None:
            return None
        elements *= call.group_size
    return elements * size


def metadata_bytes(args: Args, kind: Kind) -> int | None:
    """S of a device collective from its recorded element counts; the whole array is the larger side."""
    size = element_bytes(str(args.dtype)) if args.dtype is not None else None
    incoming, outgoing = integer(args.elements_in), integer(args.elements_out)
    if size is None or max(incoming, outgoing) < 0:
        return None
    if kind in (Kind.ALL_GATHER, Kind.REDUCE_SCATTER):
        return max(incoming, outgoing) * size
    return (incoming if incoming > 0 else outgoing) * size
