"""The command line: results on stdout, errors as one line on stderr, quick to start."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from handmade import HandMade, dims

from shardscope import cli


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank, ready in ((0, 10), (1, 30)):
        trace = HandMade(rank).step(1, 0, 60).op("aten::mm", 0, ready)
        trace.op("c10d::allreduce_", ready, ready + 1, **dims(4)).span("gloo:all_reduce", ready + 1, 47, **dims(4))
        trace.write(tmp_path / f"rank{rank}.json")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    status = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "attribute", folder)
    assert (status, err) == (0, "")
    sections = dict(section.split("\n", 1) for section in out.split("\n\n")[1:])
    shares = next(body for heading, body in sections.items() if heading.startswith("WHERE THE STEP WENT")).splitlines()
    assert shares[0].split() == ["rank", "step", "compute", "all-reduce", "idle/host"]
    assert shares[1].split() == ["0", "60.0", "µs", "16.7", "61.7", "21.7"]
    assert shares[2].split() == ["1", "60.0", "µs", "50.0", "28.3", "21.7"]
    costs = next(body for heading, body in sections.items() if heading.startswith("COMMUNICATION")).splitlines()
    assert costs[1].split() == ["0", "61.7", "0.0", "61.7", "28.3", "33.3"]
    assert costs[2].split() == ["1", "28.3", "0.0", "28.3", "28.3", "0.0"]
    waiting = "rank 1: 20.0 µs of exposed waiting over all ranks; last to arrive in 1 of 1 collective"
    assert waiting in sections["WHO KEEPS THE OTHERS WAITING"]
    assert "on a CPU" in sections["TO BEAR IN MIND"]


def test_waits_below_what_the_clocks_tell_are_no_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ends that scatter by 2 µs leave a residual of 2: the wait of 1 µs is not claimed, that of 20 µs is."""
    for rank in (0, 1):
        trace = HandMade(rank)
        for number, late in enumerate((1, 20, 1), start=1):
            start = 100 * (number - 1)
            ready = start + 10 + late * rank
            end = start + 60 + (2 * (number - 2) if rank else 0)
            trace.step(number, start, start + 100).op("aten::mm", start, ready)
            trace.op("c10d::allreduce_", ready, ready + 1, **dims(4))
            trace.span("gloo:all_reduce", ready + 1, end, **dims(4))
        trace.write(tmp_path / f"rank{rank}.json")
    _, out, _ = run(capsys, "attribute", tmp_path)
    assert "Step 2" in out and "rank 1: 20.0 µs of exposed waiting" in out
    for path in tmp_path.iterdir():
        document = json.loads(path.read_text())
        document["traceEvents"] = [event for event in document["traceEvents"] if event["name"] != "ProfilerStep#2"]
        path.write_text(json.dumps(document))
    _, out, _ = run(capsys, "attribute", tmp_path)
    section = out.split("COMMUNICATION")[1].split("\n\n")[0].splitlines()
    assert section[2].split()[-2:] == ["<", "2.0"] and section[3].split()[-2:] == ["<", "2.0"]
    assert "< shorter than the clocks disagree by: cannot be told from none" in section
    assert "clocks agree within 2.0 µs; nothing shorter is claimed across ranks" in out
    _, out, _ = run(capsys, "attribute", tmp_path, "--format", "json")
    first, *_ = json.loads(out)["ranks"][0]["steps"]
    assert first["wait_ns"] == {"all_reduce": 1000}


def test_messages_are_posted_and_do_not_arrive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, posted in ((0, 10), (1, 40)):
        trace = HandMade(rank, 2, "nccl").step(1, 0, 100).kernel("gemm", 0, posted, correlation=1, launch=0)
        args = {"Collective name": "recv" if rank else "send", "Process Group Name": "0"}
        args |= {"Src Rank": 0} if rank else {"Dst Rank": 1}
        trace.kernel("ncclDevKernel_SendRecv", posted, 50, 20, correlation=2, launch=1, **args)
        trace.write(tmp_path / f"rank{rank}.json")
    _, out, _ = run(capsys, "attribute", tmp_path)
    assert "rank 1: 30.0 µs of exposed waiting over all ranks; last to post in 1 of 1 message\n" in out


COMMANDS = (["attribute"], ["doctor"], ["open", "--no-browser"], ["merge", "-o", "out.pftrace"])


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_one_fault_reads_the_same_in_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    for name in ("ddp", "zero3", "single"):
        (tmp_path / "own" / name).mkdir(parents=True)
        (tmp_path / "own" / name / "run.json").write_text("{}")
        HandMade(0).step(1, 0, 60).op("aten::mm", 0, 9).write(tmp_path / "own" / name / "rank0.json")
        (tmp_path / "jobs" / name / "iteration_1").mkdir(parents=True)
        HandMade(0).step(1, 0, 60).op("aten::mm", 0, 9).write(tmp_path / "jobs" / name / "iteration_1" / "rank0.json")
    for place in ("own", "jobs"):
        status, _, err = run(capsys, *command, tmp_path / place)
        assert status == 2
        assert err.split(": ", 1)[1] == (
            f"{tmp_path / place}: contains 3 runs (ddp, single, zero3); name one, such as {tmp_path / place / 'ddp'}\n"
        )
        assert err.split(": ")[0] == ("refused" if command == ["doctor"] and place == "jobs" else "error")
    status, out, err = run(capsys, *command, tmp_path / "nowhere")
    assert (status, out, err) == (2, "", f"error: {tmp_path / 'nowhere'}: no such file or folder\n")


def test_copies_of_one_rank_in_one_folder_are_no_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abcdef":
        HandMade(0).step(1, 0, 60).op("aten::mm", 0, 9).write(tmp_path / f"{name}.json")
    _, _, err = run(capsys, "attribute", tmp_path)
    assert "a.json, b.json, c.json, d.json and 2 more all claim rank 0; keep one, or say --rank FILE=N" in err


def test_json_and_csv(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "attribute", folder / "rank0.json", folder / "rank1.json", "--format", "json")
    assert status == 0
    assert [rank["rank"] for rank in json.loads(out)["ranks"]] == [0, 1]
    status, out, _ = run(capsys, "attribute", folder, "--format", "csv")
    assert status == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["wait_all_reduce_ns"] for row in rows] == ["20000", "0"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no timed events"),
        ('{"traceEvents": [', "cut at byte"),
        ('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "du', "--salvage"),
        ("not json at all", "no timed events"),
        ('{"traceEvents": {"a": 1}}', "no timed events"),
        ("[1, 2, 3]", "no timed events"),
    ],
)
def test_errors_are_one_line_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    path = tmp_path / "evil\nname\x1b[31m.json"
    path.write_text(text)
    status, out, err = run(capsys, "attribute", path)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert "\x1b" not in err
    assert words in err


def test_ranks_by_hand(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("rank0.json", "rank1.json"):
        document = json.loads((folder / name).read_text())
        del document["distributedInfo"]
        (folder / name).rename(folder / f"trace_{'ab'[int(name[4])]}.json").write_text(json.dumps(document))
    status, _, err = run(capsys, "attribute", folder)
    assert status == 2
    assert "--rank FILE=N" in err
    given = ("--rank", f"{folder}/trace_a.json=3", "--rank", f"{folder}/trace_b.json=1", "--format", "json")
    status, out, _ = run(capsys, "attribute", folder, *given)
    assert status == 0
    assert [rank["rank"] for rank in json.loads(out)["ranks"]] == [1, 3]
    assert run(capsys, "attribute", folder, "--rank", "x=y")[0] == 2
    assert run(capsys, "attribute", folder, "--rank", "nowhere.json=1")[0] == 2


def test_names_from_traces_cannot_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = HandMade(0, 1).step(1, 0, 100).op("aten::mm", 0, 10)
    trace.span("evil\x1b]0;title\x07\nname", 10, 100, tid=1).write(tmp_path / "rank0.json")
    status, out, _ = run(capsys, "attribute", tmp_path)
    assert status == 0
    assert "evil" in out
    assert "\x1b" not in out
    assert "\nname" not in out


def test_a_defect_is_one_line_too(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(options: object) -> tuple[int, str]:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(cli, "_attribute", broken)
    status, out, err = run(capsys, "attribute", folder)
    assert (status, out) == (1, "")
    assert err.startswith("defect: ZeroDivisionError")
    assert err.count("\n") == 1


def test_version_starts_without_loading_anything_heavy() -> None:
    code = (
        "import sys\nfrom shardscope import cli\n"
        "try:\n    cli.main(['--version'])\nexcept SystemExit as stop:\n    assert not stop.code\n"
        "print(sorted({'numpy', 'pandas', 'torch', 'msgspec', 'hta'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, loaded = done.stdout.splitlines()
    assert version.startswith("shardscope ")
    assert loaded == "[]"


def test_help_names_the_ways_in(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in ((["--help"], ["attribute", "doctor", "examples"]), (["doctor", "--help"], ["status 0"])):
        with pytest.raises(SystemExit):
            cli.main(arguments)
        out = capsys.readouterr().out
        assert all(word in out for word in words)
