"""Which ranks may be compared: one job's, in the steps they share, on clocks that can be of one job."""

from collections import defaultdict
from collections.abc import Mapping

from shardscope.attribution.view import RankView

__all__ = ["say_far_clocks", "say_step_ranges", "split_worlds"]

_FAR_NS = 60_000_000_000


def split_worlds(views: Mapping[int, RankView]) -> list[dict[int, RankView]]:
    """Ranks by the size of their world. Files that state none join the others if these agree."""
    by_size: dict[int | None, dict[int, RankView]] = defaultdict(dict)
    for key, view in views.items():
        by_size[view.world_size][key] = view
    stated = [size for size in by_size if size is not None]
    if len(stated) == 1 and None in by_size:
        by_size[stated[0]] |= by_size.pop(None)
    if len(stated) > 1:
        for size, world in by_size.items():
            mine = "no world size" if size is None else f"a world of {size} rank{'s' if size > 1 else ''}"
            others = " and ".join(str(other) for other in sorted(stated) if other != size)
            for view in world.values():
                view.warn("several_worlds", 1, f"its trace states {mine}, others {others}: not compared with those")
    return [{key: view for key, view in views.items() if key in world} for world in by_size.values()]


def say_step_ranges(views: Mapping[int, RankView]) -> None:
    """Name the steps that only some ranks have."""
    numbers = {key: {step.number for step in view.steps if step.number is not None} for key, view in views.items()}
    everything = set().union(*numbers.values())
    for key, view in views.items():
        lacking = sorted(everything - numbers[key])
        if lacking:
            names = ", ".join(map(str, lacking[:10])) + (", …" if len(lacking) > 10 else "")
            which = f"step {names} is" if len(lacking) == 1 else f"steps {names} are"
            why = f"{which} in other ranks' traces but not in this one; waits there are bounds"
            view.warn("step_range", len(lacking), why)


def say_far_clocks(views: Mapping[int, RankView], offsets: Mapping[int, int]) -> None:
    """Clocks of one job's machines agree within seconds."""
    for key, offset in offsets.items():
        if abs(offset) > _FAR_NS and key in views:
            away = f"{offset / 1e9:.0f} s"
            views[key].warn("far_clock", 1, f"its clock is {away} from the first rank's; are these traces of one job?")
