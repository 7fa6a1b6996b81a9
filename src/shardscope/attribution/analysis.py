"""A result together with the sets it was computed from, for tables, pictures and cross-checks."""

from dataclasses import dataclass

from shardscope.attribution.ledger import RowParts
from shardscope.attribution.match import Matched
from shardscope.attribution.result import Attribution
from shardscope.attribution.view import RankView
from shardscope.errors import ResultError

__all__ = ["Analysis", "analysis_of", "remember"]

_ATTRIBUTE = "_analysis"


@dataclass
class Analysis:
    """Rows by (key, step number); views by key: the rank, or a negative number where the rank is unknown."""

    result: Attribution
    views: dict[int, RankView]
    parts: dict[tuple[int, int | None], RowParts]
    matches: list[Matched]


def remember(analysis: Analysis) -> Analysis:
    """Attach the analysis to its result."""
    setattr(analysis.result, _ATTRIBUTE, analysis)
    return analysis


def analysis_of(result: Attribution) -> Analysis:
    """What a fresh result was computed from. Raises ResultError for one that was loaded from a file."""
    found = getattr(result, _ATTRIBUTE, None)
    if not isinstance(found, Analysis):
        raise ResultError("this attribution was loaded from a file and knows no intervals; attribute the traces again")
    return found
