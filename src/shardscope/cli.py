"""`shardscope …` for people who have traces and no workflow."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from shardscope.errors import ConfigError, ShardscopeError
from shardscope.view.commands import register, run

__all__ = ["main"]

_EPILOG = """examples:
  shardscope attribute traces/                     all ranks of a job
  shardscope attribute rank0.json.gz --format json
  shardscope doctor traces/                        why does it not work, or what is missing?
  shardscope open traces/                          look at them in Perfetto
"""
_ATTRIBUTE = """\
Where the time of a training step goes, from the traces of PyTorch's profiler: compute, each kind of communication that
compute does not hide, pipeline bubble, copies, and the rest (idle, or busy on the host). With the traces of all ranks,
waiting for a slow rank is told from moving data. One file or folder per job; .json and .json.gz."""
_DOCTOR = """\
What is in these trace files, what had to be repaired, and what cannot be said from them and why. Exit status 0 when
`shardscope attribute` gives numbers for them; 2, and one line on stderr per refused file, when it does not."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 2 for what a user can mend, 1 for a defect.

    Results go to stdout only when they are whole; an error is one line on stderr.
    """
    try:
        options = _parser().parse_args(arguments)
        commands = {"attribute": _attribute, "doctor": _doctor, "open": _view, "merge": _view}
        status, text = commands[options.command](options)
    except ShardscopeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        line = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"defect: {line} (please report the trace; SHARDSCOPE_DEBUG=1 shows details)", file=sys.stderr)
        if os.environ.get("SHARDSCOPE_DEBUG"):
            raise
        return 1
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough (`| head`). Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="shardscope",
        description="Where the time of a training step goes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"shardscope {metadata.version('shardscope')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    attribute = commands.add_parser("attribute", help="where the time of a step goes, per rank", description=_ATTRIBUTE)
    _add_inputs(attribute)
    attribute.add_argument(
        "--format",
        choices=("table", "json", "csv"),
        default="table",
        help="table: one median step, to read; json: everything, to compute with; csv: one line per rank and step",
    )
    doctor = commands.add_parser("doctor", help="what the files hold and what they cannot say", description=_DOCTOR)
    _add_inputs(doctor)
    doctor.add_argument("--format", choices=("table", "json"), default="table", help="table: to read; json: the same")
    register(commands, _add_inputs)
    return parser


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", type=Path, metavar="PATH", help="trace files, or folders that hold one job's traces"
    )
    parser.add_argument(
        "--salvage", action="store_true", help="use the complete steps of a file that was cut off, instead of refusing"
    )
    parser.add_argument(
        "--rank",
        action="append",
        default=[],
        metavar="FILE=N",
        help="which rank a file belongs to, where neither it nor its name says; may be given several times",
    )
    parser.add_argument(
        "--patterns",
        type=Path,
        metavar="FILE",
        help="a TOML file of further communication kernels: [[pattern]] entries with match (a regex) and kind",
    )


def _attribute(options: argparse.Namespace) -> tuple[int, str]:
    # Numerical libraries load only once there is something to do: --help and --version stay instant.
    from shardscope.attribution.api import attribute_paths
    from shardscope.attribution.tables import as_json, ledger_csv
    from shardscope.attribution.text import as_text
    from shardscope.trace.progress import shown

    with shown():
        result = attribute_paths(
            options.paths, salvage=options.salvage, ranks=_ranks(options.rank), patterns=options.patterns
        )
    if options.format == "json":
        return 0, as_json(result).decode("utf-8")
    return 0, ledger_csv(result) if options.format == "csv" else as_text(result)


def _doctor(options: argparse.Namespace) -> tuple[int, str]:
    import msgspec

    from shardscope.attribution.doctor import examine
    from shardscope.attribution.doctor_text import as_text, refusals
    from shardscope.trace.progress import shown

    with shown():
        diagnosis = examine(
            options.paths, salvage=options.salvage, ranks=_ranks(options.rank), patterns=options.patterns
        )
    for line in refusals(diagnosis):
        print(f"refused: {line}", file=sys.stderr)
    if options.format == "json":
        text = msgspec.json.format(msgspec.json.encode(diagnosis), indent=1).decode("utf-8") + "\n"
    else:
        text = as_text(diagnosis) if diagnosis.files else ""
    return (0 if diagnosis.analysable else 2), text


def _view(options: argparse.Namespace) -> tuple[int, str]:
    return run(options, _ranks(options.rank))


def _ranks(entries: Sequence[str]) -> dict[Path, int]:
    ranks = {}
    for entry in entries:
        file, separator, number = entry.rpartition("=")
        if not separator or not (number.isascii() and number.isdigit()) or not file or len(number) > 7:
            raise ConfigError(f"--rank {entry}: expected FILE=N with N a rank, as in --rank trace_a.json=0")
        if not Path(file).is_file():
            raise ConfigError(f"--rank {entry}: no such file {file}")
        ranks[Path(file)] = int(number)
    return ranks


if __name__ == "__main__":
    sys.exit(main())
