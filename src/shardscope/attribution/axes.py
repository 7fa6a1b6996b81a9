"""The axis of process groups that have no telling name, where their ranks and their traffic leave one possibility.

Ranks are laid out with the pipeline outermost by Megatron-LM, DeepSpeed and torchtitan alike. So a group that carries
only messages and whose members are as far apart as they can be is a pipeline. And if the named groups of a rank and one
more span the world as a grid, and that one reduces or gathers, it is the data axis. Everything else stays unknown.
"""

from collections import defaultdict
from itertools import pairwise

from shardscope.attribution.view import RankView
from shardscope.vocabulary import Axis, Kind

__all__ = ["infer_axes"]

_GRADIENTS = frozenset({Kind.ALL_REDUCE, Kind.REDUCE_SCATTER})
_DATA = _GRADIENTS | {Kind.ALL_GATHER, Kind.BROADCAST, Kind.OTHER}
Ranks = tuple[int, ...]


def infer_axes(view: RankView) -> None:
    """Set the axis of a rank's communication in nameless groups, and say so."""
    world, rank = view.world_size, view.rank
    if world is None or rank is None:
        return
    traffic: dict[Ranks, set[Kind]] = defaultdict(set)
    known: dict[Ranks, Axis] = {
        group.ranks: group.axis
        for group in view.groups.groups.values()
        if group.ranks and rank in group.ranks and len(group.ranks) > 1 and group.axis is not Axis.UNKNOWN
    }
    for item in view.communications:
        if item.group is None or rank not in item.group or not 1 < len(item.group) < world:
            continue
        if item.axis is Axis.UNKNOWN:
            traffic[item.group].add(item.kind)
        else:
            known[item.group] = item.axis
    inferred: dict[Ranks, Axis] = {}
    if Axis.PIPELINE not in known.values():
        inferred |= {
            group: Axis.PIPELINE
            for group, kinds in traffic.items()
            if kinds == {Kind.SEND_RECEIVE} and _outermost(group, world)
        }
    known |= inferred
    if known and Axis.DATA not in known.values():
        candidates = [
            group
            for group, kinds in traffic.items()
            if group not in inferred and kinds & _GRADIENTS and kinds <= _DATA and _completes(group, known, world)
        ]
        if len(candidates) == 1:
            inferred[candidates[0]] = Axis.DATA
    for item in view.communications:
        if item.axis is Axis.UNKNOWN and item.group in inferred:
            item.axis = inferred[item.group]
    for group, axis in sorted(inferred.items()):
        members = ", ".join(map(str, group[:8])) + (", …" if len(group) > 8 else "")
        view.warn("axis_inferred", 1, f"the group of ranks {members} has no name; its ranks and traffic say {axis}")


def _outermost(group: Ranks, world: int) -> bool:
    """Evenly spaced by world/size, the slowest-varying place in a grid of ranks."""
    stride, rest = divmod(world, len(group))
    return rest == 0 and all(after - before == stride for before, after in pairwise(group))


def _completes(group: Ranks, known: dict[Ranks, Axis], world: int) -> bool:
    """Do the known groups of a rank and this one span the world as a grid, meeting only in the rank itself?"""
    sides = [set(group), *map(set, known)]
    size = 1
    for place, side in enumerate(sides):
        size *= len(side)
        if any(len(side & other) != 1 for other in sides[:place]):
            return False
    return size == world
