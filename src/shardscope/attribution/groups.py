"""Process groups: who is in them and which axis of parallelism they serve."""

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from shardscope.attribution.kinds import axis_of_group
from shardscope.trace.events import Args
from shardscope.trace.find import plausible_world
from shardscope.trace.table import integer
from shardscope.vocabulary import Axis

__all__ = ["Group", "GroupTable", "parse_ranks"]

_NUMBERS = re.compile(r"\d+")
_TRIVIAL = ("", "undefined", "default_pg")


@dataclass(frozen=True, slots=True)
class Group:
    """One process group as a trace describes it; `ranks` None when the list is absent or shortened."""

    ranks: tuple[int, ...] | None
    name: str
    size: int | None
    axis: Axis


def parse_ranks(value: Any) -> tuple[int, ...] | None:
    """Global ranks from a list, JSON text or text; None when absent, empty or shortened with dots."""
    if isinstance(value, msgspec.Raw):
        try:
            value = msgspec.json.decode(value) if len(value) else None
        except msgspec.MsgspecError:
            return None
    if isinstance(value, str):
        if "..." in value:
            return None
        value = _NUMBERS.findall(value)
    if not isinstance(value, list) or not value:
        return None
    numbers = [integer(item) for item in value]
    return tuple(sorted(set(numbers))) if min(numbers) >= 0 else None


class GroupTable:
    """The groups named in a trace's `distributedInfo`, and lookups by the arguments of an event."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        info = metadata.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        self.world_size = plausible_world(info.get("world_size"))
        self.implausible_world = self.world_size is None and integer(info.get("world_size")) > 0
        self.groups: dict[str, Group] = {}
        config = info.get("pg_config")
        for entry in config if isinstance(config, list) else []:
            if isinstance(entry, dict):
                self._add(entry)
        # A group without a telling name is the same group as another with the same ranks and a telling one.
        self._axes = {g.ranks: g.axis for g in self.groups.values() if g.axis is not Axis.UNKNOWN and g.ranks}
        self._cache: dict[Any, Group] = {}

    def _add(self, entry: dict[str, Any]) -> None:
        name, description = str(entry.get("pg_name", "")), str(entry.get("pg_desc", ""))
        size = integer(entry.get("pg_size"))
        ranks = parse_ranks(entry.get("ranks"))
        if ranks is not None and size > 0 and len(ranks) != size:
            ranks = None  # shortened
        if ranks is None and size > 0 and size == self.world_size:
            ranks = tuple(range(size))
        self.groups[name] = Group(
            ranks, _label(name, description), size if size > 0 else None, _axis(name, description)
        )

    @property
    def only(self) -> Group | None:
        """The one group with more than one member, if there is exactly one."""
        real = {group.ranks: group for group in self.groups.values() if group.size is None or group.size > 1}
        return next(iter(real.values())) if len(real) == 1 else None

    def of(self, args: Args) -> Group | None:
        """The group an event's arguments name, None when they name none."""
        key = (str(args.group_name), str(args.group_description), bytes(args.group_ranks), str(args.group_size))
        if key not in self._cache:
            self._cache[key] = self._resolve(args)
        found = self._cache[key]
        return found if found.ranks is not None or found.name or found.size is not None else None

    def _resolve(self, args: Args) -> Group:
        name = "" if args.group_name is None else str(args.group_name)
        description = "" if args.group_description is None else str(args.group_description)
        known = self.groups.get(name)
        size = integer(args.group_size)
        ranks = parse_ranks(args.group_ranks)
        if ranks is not None and size > 0 and len(ranks) != size:
            ranks = None
        if ranks is None and known is not None:
            ranks = known.ranks
        if ranks is None and size > 0 and size == self.world_size:
            ranks = tuple(range(size))
        axis = _axis(name, description)
        if axis is Axis.UNKNOWN and known is not None:
            axis = known.axis
        if axis is Axis.UNKNOWN and ranks is not None:
            axis = self._axes.get(ranks, Axis.UNKNOWN)
        label = _label(name, description) if description or known is None else known.name
        return Group(ranks, label, size if size > 0 else (known.size if known else None), axis)


def _axis(name: str, description: str) -> Axis:
    axis = axis_of_group(description)
    return axis if axis is not Axis.UNKNOWN else axis_of_group(name)


def _label(name: str, description: str) -> str:
    return name if description.lower() in _TRIVIAL else f"{description} ({name})" if name else description
