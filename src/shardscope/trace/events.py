"""The shape of one trace event, and what class of event a category is.

Only fields that attribution uses are decoded; everything else is skipped by the decoder. The arguments, most of a
trace's text, stay raw until it is known whether anybody reads them. Scalars are `Any` because producers disagree about
their types (streams as numbers or strings, process ids as words).
"""

from enum import IntEnum
from typing import Any

import msgspec

__all__ = ["RAW_ABSENT", "Args", "Class", "Event", "class_of"]

RAW_ABSENT = msgspec.Raw()


class Class(IntEnum):
    """What an event can be to attribution; DROPPED is never time."""

    DROPPED = 0
    HOST_OP = 1
    ANNOTATION = 2  # host side: step marks, gloo spans, record_function
    KERNEL = 3
    COPY = 4  # device copies and fills
    RUNTIME = 5  # host calls that launch device work


_CLASSES = {
    "cpu_op": Class.HOST_OP,
    "operator": Class.HOST_OP,  # traces of 2021
    "user_annotation": Class.ANNOTATION,
    "kernel": Class.KERNEL,
    "concurrent_kernel": Class.KERNEL,
    "collective_comm": Class.KERNEL,
    "gpu_memcpy": Class.COPY,
    "gpu_memset": Class.COPY,
    "memcpy": Class.COPY,
    "memset": Class.COPY,
    "cuda_driver": Class.RUNTIME,
    "runtime": Class.RUNTIME,
}


def class_of(category: str) -> Class:
    """The class of an event category, whatever the accelerator and the trace's age."""
    name = category.lower()
    found = _CLASSES.get(name)
    if found is not None:
        return found
    if name.endswith("_runtime"):
        return Class.RUNTIME
    if name.endswith("_kernel") or name == "mtia_ccp_events":
        return Class.KERNEL
    return Class.DROPPED


class Args(msgspec.Struct, gc=False):
    """`args` of an event, as far as it matters."""

    external: Any = msgspec.field(default=None, name="External id")
    external_of_2021: Any = msgspec.field(default=None, name="external id")
    correlation: Any = None
    stream: Any = None
    device: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    elements_in: Any = msgspec.field(default=None, name="In msg nelems")
    elements_out: Any = msgspec.field(default=None, name="Out msg nelems")
    group_size: Any = msgspec.field(default=None, name="Group size")
    dtype: Any = None
    group_name: Any = msgspec.field(default=None, name="Process Group Name")
    group_description: Any = msgspec.field(default=None, name="Process Group Description")
    group_ranks: msgspec.Raw = msgspec.field(default=RAW_ABSENT, name="Process Group Ranks")
    sequence: Any = msgspec.field(default=None, name="Seq")
    source: Any = msgspec.field(default=None, name="Src Rank")
    destination: Any = msgspec.field(default=None, name="Dst Rank")
    root: Any = msgspec.field(default=None, name="Root Rank")
    comms_id: Any = msgspec.field(default=None, name="Comms Id")
    dims: msgspec.Raw = msgspec.field(default=RAW_ABSENT, name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=RAW_ABSENT, name="Input type")
    concrete: msgspec.Raw = msgspec.field(default=RAW_ABSENT, name="Concrete Inputs")


class Event(msgspec.Struct, gc=False):
    """One element of `traceEvents`."""

    ph: str | None = None
    cat: str | None = None
    name: str | int | float | None = None
    pid: str | int | float | None = None
    tid: str | int | float | None = None
    ts: msgspec.Raw = RAW_ABSENT
    dur: msgspec.Raw = RAW_ABSENT
    args: msgspec.Raw = RAW_ABSENT
