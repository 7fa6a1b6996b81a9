"""How counts, times, ranks and tables are written for a terminal."""

from collections.abc import Sequence

__all__ = ["counted", "duration", "printable", "ranks_text", "table"]


def duration(ns: float) -> str:
    """A time in the unit that suits it."""
    if abs(ns) < 1e6:
        return f"{ns / 1e3:.1f} µs"
    return f"{ns / 1e6:.3f} ms" if abs(ns) < 1e9 else f"{ns / 1e9:.3f} s"


def counted(count: int, word: str, several: str | None = None) -> str:
    """ "1 rank", "2 ranks"."""
    return f"{count:,} {word}" if count == 1 else f"{count:,} {several or f'{word}s'}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns set flush right."""
    widths = [max(len(line[i]) for line in [header, *rows]) for i in range(len(header))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [header, *rows]
    ]


def printable(line: str) -> str:
    """File and event names come from outside: no control characters reach the terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)


def ranks_text(names: Sequence[str]) -> str:
    """ "rank 3", "ranks 0–7", "ranks 0, 2, 5"."""
    if len(names) == 1:
        return f"rank {names[0]}"
    if all(name.isdigit() for name in names):
        numbers = sorted(map(int, names))
        if len(numbers) > 2 and numbers == sorted(set(numbers)) and numbers[-1] - numbers[0] == len(numbers) - 1:
            return f"ranks {numbers[0]}–{numbers[-1]}"
    return f"ranks {', '.join(names)}"
