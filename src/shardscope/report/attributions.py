"""The attributions that a report rests on, read once for all its documents and drawings."""

from collections.abc import Mapping
from pathlib import Path

from shardscope.attribution.result import ATTRIBUTION_FILE, Attribution, load_attribution
from shardscope.errors import ResultError
from shardscope.selection.decision import Decision

__all__ = ["attributions"]


def attributions(decision: Decision, folders: Mapping[tuple[str, str], Path]) -> dict[str, Attribution]:
    """By strategy, of all that ran. `folders`: (workload, strategy) → attribution folder.

    Raises ResultError when one that the decision rests on is missing.
    """
    found = {}
    for row in decision.strategies:
        if row.ran:
            folder = folders.get((decision.workload.name, row.name))
            if folder is None:
                raise ResultError(f"report: the attribution of {decision.workload.name}/{row.name} was not given")
            found[row.name] = load_attribution(folder / ATTRIBUTION_FILE)
    return found
