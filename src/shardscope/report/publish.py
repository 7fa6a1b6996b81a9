"""Put a report in place: its documents and the folder of its figures, all of them or none."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from shardscope import beside
from shardscope.errors import ResultError, cannot_write

__all__ = ["publish"]


def publish(documents: Mapping[str, str], figures: Mapping[str, str], folder_name: str, output_dir: Path) -> None:
    """Write beside, then swap: the figures first, then the documents from last to first.

    documents, figures: file name → text; figures go into `output_dir`/`folder_name`, which is replaced. The first
    document is the one that links to all others, so it never links to what is not there. Raises ResultError.
    """
    folder = output_dir / folder_name
    try:
        work = beside.new_folder(folder)
    except OSError as error:
        raise ResultError(cannot_write(output_dir, error)) from error
    try:
        new = work / folder_name
        new.mkdir()
        new.chmod(0o755)
        for name, content in figures.items():
            (new / name).write_text(content, encoding="utf-8")
        for name, content in documents.items():
            (work / name).write_text(content, encoding="utf-8")
        beside.put_in_place(new, folder)
        for name in reversed(list(documents)):
            (work / name).replace(output_dir / name)
    except OSError as error:
        raise ResultError(cannot_write(output_dir, error)) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
