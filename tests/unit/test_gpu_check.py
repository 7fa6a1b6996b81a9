"""The comparison behind `make gpu-check`, on made-up runs: it sees what is missing, and nothing is no pass."""

from pathlib import Path

import pytest
from selection_runs import nine, write
from tests import gpu_check


def made(root: Path) -> Path:
    """Runs in the places where the workflow puts them."""
    write(root, nine())
    (root / "reports").mkdir()
    (root / "data").rename(root / "reports" / "data")
    return root


NAMES = [fake.name for fake in nine()]


def test_a_run_has_the_structure_of_itself_and_other_numbers_do_not_matter(tmp_path: Path) -> None:
    found = gpu_check.structure(made(tmp_path / "one"), NAMES, "gpt3m")
    assert found["ddp"]["calls"] == {"all_reduce on data": 8} and "timing.triples" in found["ddp"]["fields"]
    assert gpu_check.differences(found, gpu_check.structure(made(tmp_path / "two"), NAMES, "gpt3m")) == []


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    expected = gpu_check.structure(made(tmp_path), NAMES, "gpt3m")
    found = gpu_check.structure(tmp_path, NAMES, "gpt3m")
    found["ddp"] = {**found["ddp"], "calls": {"all_reduce on data": 7}, "files": found["ddp"]["files"][1:]}
    found["zero3"] = {**found["zero3"], "status": "failed"}
    lines = gpu_check.differences(found, expected)
    assert [line.split(":")[0] for line in lines] == ["ddp", "ddp", "zero3"]
    assert "all_reduce on data', 7" in lines[1] and lines[2] == "zero3: status: failed, on the CPU ok"


def test_without_a_gpu_nothing_passes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_check, "gpus", lambda: (0, "2.13.0"))
    monkeypatch.setattr(gpu_check, "run", lambda *arguments: pytest.fail("started something"))
    assert gpu_check.main() == gpu_check.NOTHING_CHECKED != 0
    assert "nothing was checked" in capsys.readouterr().out


@pytest.mark.parametrize(("device", "status"), [("cuda", gpu_check.PASSED), ("cpu", gpu_check.DIFFERS)])
def test_ranks_that_ran_on_the_cpu_are_no_gpu_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, device: str, status: int
) -> None:
    monkeypatch.setattr(gpu_check, "gpus", lambda: (8, "2.13.0"))
    monkeypatch.setattr(gpu_check, "run", lambda folder, names, ranks, variables: folder)
    monkeypatch.setattr(
        gpu_check,
        "structure",
        lambda folder, names: {
            name: {
                "status": "ok",
                "device": device if folder.name == "gpu" else "cpu",
                **dict.fromkeys(("files", "fields", "calls", "ledger"), ()),
            }
            for name in names
        },
    )
    assert gpu_check.main() == status
