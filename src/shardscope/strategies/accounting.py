"""Arithmetic that the plans share: state bytes, lines of collectives, why a size does not divide. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shardscope.measure.record import ExpectedCollective, Plan, RankState
from shardscope.vocabulary import Axis, Kind
from shardscope.workload.shapes import element_size, parameter_count
from shardscope.workload.spec import WorkloadSpec

__all__ = ["STEP_BYTES", "collective", "make_plan", "rank_state", "undivided", "world"]

STEP_BYTES = 4  # torch's AdamW keeps one float32 step counter per parameter tensor


def world(world_size: int) -> tuple[int, ...]:
    """The group of all ranks."""
    return tuple(range(world_size))


def rank_state(
    spec: WorkloadSpec, rank: int, *, parameters: Iterable[int], gradients: Iterable[int], optimized: Iterable[int]
) -> RankState:
    """State bytes of one rank from the element counts of the tensors it holds.

    parameters, gradients: elements per tensor; optimized: elements of the tensors whose moments (two each) it keeps.
    """
    size = element_size(spec)
    return RankState(
        rank=rank,
        parameter_bytes=size * sum(parameters),
        gradient_bytes=size * sum(gradients),
        optimizer_bytes=sum(2 * size * elements + STEP_BYTES for elements in optimized),
    )


def collective(
    kind: Kind, axis: Axis, group: tuple[int, ...], what: str, *, count: int, each: int
) -> ExpectedCollective:
    """One line of a plan: `count` calls of `each` bytes."""
    return ExpectedCollective(kind=kind, axis=axis, group=group, count=count, bytes=count * each, what=what)


def make_plan(
    spec: WorkloadSpec,
    state: Iterable[RankState],
    collectives: Iterable[ExpectedCollective] = (),
    **more: Any,
) -> Plan:
    """A Plan of this workload."""
    return Plan(parameter_count=parameter_count(spec), state=tuple(state), collectives=tuple(collectives), **more)


def undivided(world_size: int, sizes: Mapping[str, int]) -> str | None:
    """Why the named sizes cannot be cut into `world_size` equal parts, or None. One rank has nothing to divide."""
    if world_size < 2:
        return "needs at least 2 ranks"
    bad = [f"{name} {size}" for name, size in sizes.items() if size % world_size]
    return f"{' and '.join(bad)} cannot be divided by {world_size} ranks" if bad else None
