"""Mutated traces through the command line's main, in process: `python -m tests.fuzz` runs 10,000, the tests 1,000.

Bytes are flipped, cut, moved and repeated; values are swapped by type. Whatever comes out of that, the command ends
with status 0 or 2 in a few seconds, an error is one line, and a ledger adds up without a negative part. Every case
follows from its number alone: `python -m tests.fuzz --case 123` does that one again and keeps its files.
"""

import argparse
import contextlib
import io
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from shardscope import cli
from tests.mutations import mutate
from tests.unit.fuzz_seeds import write_seeds

CASES = 10_000
LIMIT_S = 20
MEMORY_BYTES = 3 << 30  # above what the process has: a mutated size must not be allocated
PARTS = ("compute_ns", "copies_exposed_ns", "host_other_ns")


class TooSlow(BaseException):
    """Not an Exception, which the command line would take for a defect of its own."""


@dataclass(frozen=True)
class Outcome:
    """What one case did; `fault` None: as it should."""

    case: int
    seed: str
    arguments: tuple[str, ...]
    status: int | None
    fault: str | None


def run_cases(cases: Iterator[int] | range, keep: Path | None = None) -> list[Outcome]:
    """Run cases by number, each in a fresh folder; `keep` gets the files of those at fault."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="shardscope-fuzz-") as temporary:
        seeds = write_seeds(Path(temporary) / "seeds")
        for case in cases:
            folder = Path(temporary) / "case"
            shutil.rmtree(folder, ignore_errors=True)
            outcome = _run(case, seeds, folder)
            outcomes.append(outcome)
            if keep is not None and outcome.fault is not None:
                shutil.copytree(folder, keep / str(case), dirs_exist_ok=True)
    return outcomes


def _run(case: int, seeds: list[Path], folder: Path) -> Outcome:
    chance = random.Random(case)
    seed = chance.choice(seeds)
    shutil.copytree(seed, folder)
    mutate(folder, chance)
    command = chance.choice(("attribute",) * 5 + ("doctor",))
    form = chance.choice(("json", "json", "json", "table", "csv") if command == "attribute" else ("json", "table"))
    arguments = [command, str(folder), "--format", form, *chance.choice(([], [], ["--salvage"]))]
    status, out, err, fault = _call(arguments)
    if fault is None:
        fault = (check if command == "attribute" else check_doctor)(status, out, err, form)
    return Outcome(case, seed.name, tuple(arguments), status, fault)


def _call(arguments: list[str]) -> tuple[int | None, str, str, str | None]:
    out, err = io.StringIO(), io.StringIO()
    try:
        with _limits(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("error")
            status = cli.main(arguments)
    except TooSlow:
        return None, "", "", f"still running after {LIMIT_S} s:\n{traceback.format_exc(limit=-6)}"
    except BaseException:
        return None, "", "", f"escaped from main:\n{traceback.format_exc(limit=-6)}"
    return status, out.getvalue(), err.getvalue(), None


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """Time and memory for one case."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if _linux() else 0
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, stop)
    if held:
        resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY_BYTES, before[1]))
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _linux() -> bool:
    return sys.platform == "linux"


def check(status: int | None, out: str, err: str, form: str) -> str | None:
    """What is wrong with an answer of the command line; None: nothing."""
    if status == 2:
        if out or not err.startswith("error: ") or err.count("\n") != 1 or not err.endswith("\n"):
            return f"an error is one line on stderr and nothing on stdout: {out[:200]!r} {err[:200]!r}"
        return None
    if status != 0 or err or not out:
        return f"status {status}, stderr {err[:300]!r}"
    if form != "json":
        return None
    result = json.loads(out)
    faults = [fault for rank in result["ranks"] for row in rank["steps"] for fault in _row(row)]
    if not any(rank["steps"] for rank in result["ranks"]):
        faults.append("no step at all")
    for item in result["collectives"]:
        values = [item["transfer_ns"], *(item["wait_ns"] or {}).values(), *(item["exposed_wait_ns"] or {}).values()]
        faults += [f"negative time in a collective: {value}" for value in values if value is not None and value < 0]
    for rank in result["ranks"]:
        if not all(0 <= value <= 1 for value in rank["evidence_fraction"].values()):
            faults.append(f"evidence {rank['evidence_fraction']}")
    return "; ".join(faults[:3]) or None


def check_doctor(status: int | None, out: str, err: str, form: str) -> str | None:
    """The same for `doctor`, which names every refused file in a line of its own and still tells of the others."""
    lines = err.splitlines()
    said = all(line.startswith(("error: ", "refused: ")) for line in lines)
    if status not in (0, 2) or (status == 0) != (not lines) or not said:
        return f"status {status}, stderr {err[:300]!r}"
    if form == "json" and out:
        json.loads(out)
    return None


def _row(row: dict[str, Any]) -> Iterator[str]:
    parts = sum(row["attributed_ns"].values()) + (row["bubble_ns"] or 0) + sum(row[name] for name in PARTS)
    if parts != row["window_ns"]:
        yield f"step {row['step']}: parts {parts} of {row['window_ns']} ns"
    for name, value in _times(row):
        if value < 0:
            yield f"step {row['step']}: {name} is {value}"
    for kind, busy in row["busy_ns"].items():
        if busy != row["exposed_ns"].get(kind, 0) + row["overlapped_ns"].get(kind, 0):
            yield f"step {row['step']}: busy {kind} is not exposed + overlapped"
    if sum(row["attributed_by_axis_ns"].values()) != sum(row["attributed_ns"].values()):
        yield f"step {row['step']}: the axes do not add up"


def _times(row: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Every duration in a row. Its start may be any number."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _times(value, f"{prefix}{name}.")
        elif isinstance(value, int) and (prefix or name.endswith("_ns")) and name != "start_ns":
            yield f"{prefix}{name}", value


def main() -> int:
    """Run many cases, or one; exit status 1 when any is at fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=CASES, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first case")
    parser.add_argument("--case", type=int, metavar="N", help="this one only")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-faults"), metavar="FOLDER", help="files at fault")
    options = parser.parse_args()
    cases = range(options.first, options.first + options.cases)
    outcomes = run_cases(cases if options.case is None else range(options.case, options.case + 1), options.keep)
    faults = [outcome for outcome in outcomes if outcome.fault is not None]
    for outcome in faults[:20]:
        command = " ".join((outcome.arguments[0], *outcome.arguments[2:]))
        print(f"case {outcome.case} ({outcome.seed}, {command}): {outcome.fault}")
    answers = Counter(outcome.status for outcome in outcomes)
    print(f"{len(outcomes)} cases: {answers[0]} attributed, {answers[2]} refused in one line, {len(faults)} at fault")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
