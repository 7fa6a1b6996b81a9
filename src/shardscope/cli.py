"""`shardscope …` for people who have traces and no workflow."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from shardscope.errors import ConfigError, ShardscopeError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 2 for what a user can mend, 1 for a defect.

    Results go to stdout only when they are whole; an error is one line on stderr.
    """
    try:
        options = _parser().parse_args(arguments)
        text = _attribute(options)
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
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="shardscope", description="Where the time of a training step goes.")
    parser.add_argument("--version", action="version", version=f"shardscope {metadata.version('shardscope')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    attribute = commands.add_parser(
        "attribute",
        help="attribute step time to compute, communication, bubble and host",
        description="Attribute the step time of profiler traces, ours or anybody's, one file or folder per job.",
    )
    attribute.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="trace files, or folders that hold them")
    attribute.add_argument(
        "--format", choices=("table", "json", "csv"), default="table", help="table: the summary step; csv: all rows"
    )
    attribute.add_argument("--salvage", action="store_true", help="use the complete steps of a cut file")
    attribute.add_argument(
        "--rank",
        action="append",
        default=[],
        metavar="FILE=N",
        help="which rank a file belongs to, where it does not say",
    )
    attribute.add_argument(
        "--patterns", type=Path, metavar="FILE", help="further kernel names, like attribution/kinds.toml"
    )
    return parser


def _attribute(options: argparse.Namespace) -> str:
    # Numerical libraries load only once there is something to do: --help and --version stay instant.
    from shardscope.attribution.api import attribute_paths
    from shardscope.attribution.tables import as_json, ledger_csv
    from shardscope.attribution.text import as_text

    result = attribute_paths(
        options.paths, salvage=options.salvage, ranks=_ranks(options.rank), patterns=options.patterns
    )
    if options.format == "json":
        return as_json(result).decode("utf-8")
    return ledger_csv(result) if options.format == "csv" else as_text(result)


def _ranks(entries: Sequence[str]) -> dict[Path, int]:
    ranks = {}
    for entry in entries:
        file, separator, number = entry.rpartition("=")
        if not separator or not number.isdigit() or not file:
            raise ConfigError(f"--rank {entry}: expected FILE=N with N a rank, as in --rank trace_a.json=0")
        if not Path(file).is_file():
            raise ConfigError(f"--rank {entry}: no such file {file}")
        ranks[Path(file)] = int(number)
    return ranks


if __name__ == "__main__":
    sys.exit(main())
