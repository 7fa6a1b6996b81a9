"""Entry point of each rank: `python -m shardscope.measure.worker FOLDER` under torchrun."""

import errno
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

import msgspec

from shardscope.errors import ShardscopeError, cannot_write
from shardscope.measure.disk import Room
from shardscope.measure.job import AGREED_FILE, JOB_FILE, Agreed, Job, RankError, read_json, write_json
from shardscope.measure.lifetime import end_with_parent

__all__ = ["main"]

# An error must fit into its Room, in the worst case with six bytes per character (\\u001b).
_LONGEST, _WIDEST, _LAST = 1000, 200, 20


def main(folder: Path) -> None:
    """Do the job described in `folder`; leave this rank's result there, or its error. Never returns after an error."""
    end_with_parent(int(os.environ["SHARDSCOPE_AGENT"]), signal.SIGKILL)
    session = room = None
    try:
        room = Room(folder / f"rank{os.environ['RANK']}.room")
        job, agreed = read_json(folder / JOB_FILE, Job), read_json(folder / AGREED_FILE, Agreed)
        from shardscope.measure.session import Session
        from shardscope.measure.steps import make_reference, measure

        session = Session(job, agreed)
        if job.mode == "reference":
            make_reference(session)
        else:
            write_json(folder / f"rank{session.rank}.result.json", measure(session))
        session.enter("end")
        session.close()
    except BaseException as error:
        try:
            _report(folder, session, room, error)
        finally:
            # Peers may be waiting in a collective that will never come; an orderly exit would wait for them.
            os._exit(1)


def _report(folder: Path, session: object | None, room: Room | None, error: BaseException) -> None:
    rank = int(os.environ["RANK"])
    lines = tuple("".join(traceback.format_exception(error)).splitlines())
    with suppress(OSError):  # the log may be what cannot be written
        for line in lines:
            print(f"[rank {rank}] {line}", file=sys.stderr)
        sys.stderr.flush()
        sys.stdout.flush()
    from shardscope.measure.session import is_allocation_error

    message = RankError(
        rank=rank,
        time_ns=time.time_ns(),
        phase=getattr(session, "phase_name", "start"),
        alive=tuple(getattr(session, "alive", ())),
        out_of_memory=is_allocation_error(error),
        message=_plain(_told(error, folder)[:_LONGEST]),
        traceback=tuple(_plain(line[:_WIDEST]) for line in lines[-_LAST:]),
    )
    if room is not None:
        with suppress(OSError):
            room.become(folder / f"rank{rank}.error.json", msgspec.json.encode(message))


def _plain(text: str) -> str:
    """Without what JSON cannot hold: a file name that is not UTF-8 comes with lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _told(error: BaseException, folder: Path) -> str:
    """What went wrong, in one line."""
    if isinstance(error, ShardscopeError):
        return str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return cannot_write(error.filename or folder, error)
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
