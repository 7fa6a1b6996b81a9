"""Every c10d call of this rank, in issue order: what a CPU trace does not say (group, bytes, true kind).

A kernel registered for each c10d op at the BackendSelect key, which every call passes on any thread and under any
tensor subclass: calls from Python, from DDP's reducer in C++, from DTensor's functional collectives, from FSDP2 and
from pipelining's batched sends. Unlike a TorchDispatchMode it costs nothing on other operators.
"""

from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from shardscope.measure.record import CommunicationCall
from shardscope.strategies.base import Axes
from shardscope.vocabulary import Axis, Kind

__all__ = ["Sidecar"]

# op → kind, name of the argument whose bytes are S (record.ExpectedCollective)
_OPS: Mapping[str, tuple[Kind, str | None]] = {
    "allreduce_": (Kind.ALL_REDUCE, "tensors"),
    "allreduce_coalesced_": (Kind.ALL_REDUCE, "tensors"),
    "broadcast_": (Kind.BROADCAST, "tensors"),
    "_allgather_base_": (Kind.ALL_GATHER, "output_tensor"),
    "allgather_": (Kind.ALL_GATHER, "output_tensors"),
    "allgather_coalesced_": (Kind.ALL_GATHER, "output_lists"),
    "allgather_into_tensor_coalesced_": (Kind.ALL_GATHER, "outputs"),
    "_reduce_scatter_base_": (Kind.REDUCE_SCATTER, "input_tensor"),
    "reduce_scatter_": (Kind.REDUCE_SCATTER, "input_tensors"),
    "reduce_scatter_tensor_coalesced_": (Kind.REDUCE_SCATTER, "inputs"),
    "alltoall_base_": (Kind.ALL_TO_ALL, "input"),
    "alltoall_": (Kind.ALL_TO_ALL, "input_tensors"),
    "send": (Kind.SEND_RECEIVE, "tensors"),
    "recv_": (Kind.SEND_RECEIVE, "tensors"),
    "recv_any_source_": (Kind.SEND_RECEIVE, "tensors"),
    "barrier": (Kind.OTHER, None),
    "monitored_barrier_": (Kind.OTHER, None),
    "reduce_": (Kind.OTHER, "tensors"),
    "gather_": (Kind.OTHER, "input_tensors"),
    "scatter_": (Kind.OTHER, "output_tensors"),
}


class Sidecar:
    """Context manager: records while `step` is a number."""

    def __init__(self, axes: Axes) -> None:
        self.step: int | None = None
        self.calls: list[CommunicationCall] = []
        self._axes: dict[tuple[int, ...], Mapping[str, str]] = {
            tuple(sorted(group)): dict.fromkeys(Kind, axis) if isinstance(axis, str) else axis
            for group, axis in axes.items()
        }
        self._library: Any = None

    def __enter__(self) -> "Sidecar":
        self._library = torch.library.Library("c10d", "IMPL")  # type: ignore[no-untyped-call]
        for name in _communicating_ops():
            self._library.impl(name, self._kernel(name), "BackendSelect", with_keyset=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library._destroy()

    def _kernel(self, name: str) -> Callable[..., Any]:
        op = getattr(torch.ops.c10d, name).default
        arguments = [argument.name for argument in op._schema.arguments]
        below = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)

        def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            if self.step is not None:
                self._record(name, {**dict(zip(arguments, args, strict=False)), **kwargs})
            return op.redispatch(keyset & below, *args, **kwargs)

        return kernel

    def _record(self, name: str, arguments: Mapping[str, Any]) -> None:
        kind, counted = _OPS.get(name, (Kind.UNKNOWN, "tensors"))
        process_group = dist.ProcessGroup.unbox(arguments["process_group"])
        ranks = dist.get_process_group_ranks(process_group)
        here, source, destination = dist.get_rank(), None, None
        if name == "send":
            source, destination = here, ranks[arguments["dst"]]
        elif name in ("recv_", "recv_any_source_"):
            destination = here
            source = ranks[arguments["src"]] if "src" in arguments else None
        assert self.step is not None
        self.calls.append(
            CommunicationCall(
                step=self.step,
                kind=kind,
                axis=Axis(self._axes.get(tuple(sorted(ranks)), {}).get(kind, Axis.UNKNOWN)),
                group=tuple(ranks),
                bytes=_bytes(arguments.get(counted)) if counted is not None else 0,
                op=f"c10d::{name}",
                source=source,
                destination=destination,
                tag=arguments.get("tag") if kind is Kind.SEND_RECEIVE else None,
                backward=torch._C._current_autograd_node() is not None,
            )
        )


def _communicating_ops() -> Iterable[str]:
    """c10d ops that take a process group, whatever this version of torch has."""
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        if namespace == "c10d" and "." not in name:
            schema = getattr(torch.ops.c10d, name).default._schema
            if any(argument.name == "process_group" for argument in schema.arguments):
                yield name


def _bytes(value: Any) -> int:
    """Bytes of a tensor or of nested lists of tensors."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(_bytes(item) for item in value) if isinstance(value, (list, tuple)) else 0
