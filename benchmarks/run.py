"""`python -m benchmarks.run`: whole processes of shardscope and of HolisticTraceAnalysis on the same large traces.

Prints time and peak memory of both and their ratios, and writes them with date and hardware to benchmarks/results.md.
Both run once on a small trace before, so that neither compiles its Python code while it is timed. Traces below 100 MB
are taken three times and the median counts. Nothing is asserted about time: a shared machine would make that a coin
toss. `--big` adds a trace of 1 GB that shardscope alone reads, to show how time and memory grow.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from benchmarks.generate import write_trace

RESULTS = Path(__file__).with_name("results.md")
SIZES_MB = (50, 200)
BIG_MB = 1000
WARM_UP_MB = 1
SMALL_MB, REPEATS = 100, 3
CHECKED_STEP_FIELDS = ("compute_ns", "copies_exposed_ns", "host_other_ns")
# Both write the seconds from after their imports to the end of their work into the last argument's file.
OURS = """
import sys, time
from shardscope.attribution import api, tables
from shardscope.cli import main
folder, path, clock = sys.argv[1:]
begin = time.perf_counter()
status = main(["attribute", path, "--format", "json"])
open(clock, "w").write(str(time.perf_counter() - begin))
sys.exit(status)
"""
# HTA with its default settings: load, temporal breakdown, overlap.
HTA = """
import contextlib, io, logging, sys, time, warnings
warnings.simplefilter("ignore")
logging.disable(logging.ERROR)
from hta.trace_analysis import TraceAnalysis
folder, path, clock = sys.argv[1:]
begin = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()):
    analysis = TraceAnalysis(trace_files={0: path}, trace_dir=folder)
    breakdown = analysis.get_temporal_breakdown(visualize=False)
    overlap = analysis.get_comm_comp_overlap(visualize=False)
open(clock, "w").write(str(time.perf_counter() - begin))
print(breakdown.to_json(orient="records"), overlap.to_json(orient="records"))
"""


@dataclass(frozen=True)
class Measured:
    """One whole process: seconds from start to end, those after its imports, on a core, and its peak resident set."""

    seconds: float
    work_seconds: float
    core_seconds: float
    peak_bytes: int

    def __str__(self) -> str:
        parts = f"{self.seconds:.1f} s, after imports {self.work_seconds:.1f} s, on a core {self.core_seconds:.1f} s"
        return f"{parts}, {self.peak_bytes / 1e6:.0f} MB"


@dataclass(frozen=True)
class Line:
    """One trace: its size, and what each tool took. `hta` None: not run."""

    bytes: int
    events: int
    ours: Measured
    hta: Measured | None


def main() -> int:
    """Run the benchmark; the exit status is 1 when a tool failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--big", action="store_true", help="also read a trace of 1 GB, with shardscope alone")
    parser.add_argument("--sizes", type=float, nargs="*", default=list(SIZES_MB), metavar="MB", help="traces to make")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FILE", help="where the table goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shardscope-bench-") as folder:
        _line(Path(folder) / "rank0.json", WARM_UP_MB, compare=True, repeats=1)
    lines = []
    for size in [*options.sizes, *([BIG_MB] if options.big else [])]:
        compare = size in options.sizes
        with tempfile.TemporaryDirectory(prefix="shardscope-bench-") as folder:
            repeats = REPEATS if size < SMALL_MB else 1
            lines.append(_line(Path(folder) / "rank0.json", size, compare=compare, repeats=repeats))
    text = table(lines)
    print(text)
    fresh = options.output.with_name(f".{options.output.name}.tmp")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(options.output)
    return 0


def _line(path: Path, size: float, *, compare: bool, repeats: int) -> Line:
    events = write_trace(path, size)
    written = path.stat().st_size
    print(f"{written / 1e6:,.0f} MB, {events:,} timed events", file=sys.stderr)
    ours: list[Measured] = []
    hta: list[Measured] = []
    for _ in range(repeats):
        found, out = _process(OURS, path)
        print(f"  shardscope {found}", file=sys.stderr)
        _whole(out)
        ours.append(found)
        if compare:
            found, out = _process(HTA, path)
            print(f"  HTA {found}\n  HTA says {out.strip().splitlines()[-1]}", file=sys.stderr)
            hta.append(found)
    return Line(written, events, _median(ours), _median(hta) if hta else None)


def _median(runs: list[Measured]) -> Measured:
    """The run that took the middle time."""
    return sorted(runs, key=lambda run: run.work_seconds)[len(runs) // 2]


def _process(code: str, path: Path) -> tuple[Measured, str]:
    """Run to the end and ask the kernel for its peak; what it printed comes back."""
    clock = path.with_name("clock")
    command = [sys.executable, "-c", code, str(path.parent), str(path), str(clock)]
    # An installed package has its compiled code beside it; so has one that runs from its sources, if it may keep it.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"error: the process ended with status {process.returncode}; see above")
        out.seek(0)
        peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return Measured(seconds, float(clock.read_text()), usage.ru_utime + usage.ru_stime, peak), out.read()


def _whole(text: str) -> None:
    """The timed run must have done the work: every row adds up and holds compute and communication."""
    (rank,) = json.loads(text)["ranks"]
    for row in rank["steps"]:
        parts = sum(row["attributed_ns"].values()) + sum(row[field] for field in CHECKED_STEP_FIELDS)
        if parts != row["window_ns"] or not row["compute_ns"] or not row["attributed_ns"]:
            sys.exit(f"error: the ledger of step {row['step']} is not whole")


def table(lines: list[Line]) -> str:
    """The results as Markdown."""
    rows = []
    for line in lines:
        ours, hta = line.ours, line.hta
        cells = [f"{line.bytes / 1e6:,.0f} MB", f"{line.events:,}", _time(ours)]
        faster = (hta.seconds / ours.seconds, hta.work_seconds / ours.work_seconds) if hta else None
        cells += [_time(hta), "**{:.1f} ×** ({:.1f} ×)".format(*faster)] if hta and faster else ["–", "–"]
        cells += [f"{ours.peak_bytes / 1e6:,.0f} MB"]
        cells += [f"{hta.peak_bytes / 1e6:,.0f} MB", f"1/{hta.peak_bytes / ours.peak_bytes:.1f}"] if hta else ["–", "–"]
        rows.append("| " + " | ".join(cells) + " |")
    header = ("Trace", "Timed events", "shardscope", "HTA", "Faster", "Peak memory", "HTA's peak", "Share of it")
    head = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([
        "One GPU trace: shardscope reads it and attributes every step; HolisticTraceAnalysis "
        f"{_version('traceinsight')} loads it and",
        "computes its temporal breakdown and overlap. Whole processes from start to end, in brackets without imports.",
        "",
        *head, *rows,
        "",
        f"{datetime.date.today().isoformat()}, {_processor()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, shardscope {_version('shardscope')}. By `make bench`; 1 MB is 10⁶ bytes.",
    ]) + "\n"  # fmt: skip


def _time(found: Measured) -> str:
    return f"{found.seconds:.1f} s ({found.work_seconds:.1f} s)"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(version unknown)"


def _processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
