"""A report in place: the first document last, old figures gone, and after a failure what was there before."""

from pathlib import Path

import pytest

from shardscope.errors import ResultError
from shardscope.report.publish import publish


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_the_document_that_links_to_the_others_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[str] = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: moved.append(self.name) or replace(self, target))
    publish({"summary.md": "s", "summary.zh.md": "z", "evidence.md": "e"}, {"a.svg": "1"}, "figures", tmp_path)
    assert moved == ["evidence.md", "summary.zh.md", "summary.md"]
    publish({"summary.md": "s2"}, {"b.svg": "2"}, "figures", tmp_path)
    assert files(tmp_path) == {
        "summary.md": "s2", "summary.zh.md": "z", "evidence.md": "e", "figures/b.svg": "2"
    }  # fmt: skip


def test_a_failure_leaves_the_earlier_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish({"summary.md": "s"}, {"a.svg": "1"}, "figures", tmp_path)
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "figures" and Path(target).parent == tmp_path and self.parent != tmp_path:
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(ResultError, match="cannot be written"):
        publish({"summary.md": "new"}, {"b.svg": "2"}, "figures", tmp_path)
    assert files(tmp_path) == {"summary.md": "s", "figures/a.svg": "1"}


def test_figures_of_a_process_killed_between_the_renames_are_found_again(tmp_path: Path) -> None:
    publish({"summary.md": "s"}, {"a.svg": "1"}, "figures", tmp_path)
    (tmp_path / "figures").rename(tmp_path / ".figures.earlier")
    (tmp_path / "x").touch()
    with pytest.raises(ResultError):
        publish({"x/y.md": "no such folder"}, {}, "figures", tmp_path)
    assert files(tmp_path) == {"summary.md": "s", "x": "", "figures/a.svg": "1"}
