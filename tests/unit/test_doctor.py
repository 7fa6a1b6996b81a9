"""`shardscope doctor`: what is in the files, what was repaired, what cannot be said."""

import json
from pathlib import Path

import pytest
from handmade import HandMade, dims

from shardscope import cli

NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, list[str]]:
    status = cli.main(["doctor", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err.splitlines()


def test_a_healthy_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in (0, 1):
        trace = HandMade(rank).step(1, 0, 60).step(2, 60, 100).op("aten::mm", 0, 10)
        trace.op("c10d::allreduce_", 10, 11, **dims(4)).span("gloo:all_reduce", 11, 47, **dims(4))
        trace.add("python_function", "train.py(3): step", 0, 60).write(tmp_path / f"rank{rank}.json")
    status, out, err = doctor(capsys, tmp_path)
    assert (status, err) == (0, [])
    for words in (
        "rank 1 (says the file itself) of 2, cpu",
        "steps: 1 to 2",
        "used: 2 operators, 3 annotations",
        "never time: 1 python_function",
        "CANNOT BE SAID",
        "memory and throughput",
        "can be analysed",
    ):
        assert words in out


def test_json_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = HandMade(3, 8, "nccl").step(5, 0, 100).kernel("gemm", 0, 10).kernel(NCCL, 10, 30, 20)
    trace.kernel("negative", 50, 40)
    path = trace.write(tmp_path / "rank3.json")
    status, out, _ = doctor(capsys, path, "--format", "json")
    document = json.loads(out)
    assert (status, document["analysable"]) == (0, True)
    (report,) = document["files"]
    assert (report["rank"], report["rank_from"], report["world_size"], report["device"]) == (3, "inside", 8, "cuda")
    assert report["steps"] == [5]
    assert report["events"] == {"annotations": 1, "kernels": 3}
    assert [(item["code"], item["count"]) for item in report["repairs"]] == [("negative_duration", 1)]
    assert document["missing_ranks"] == [0, 1, 2, 4, 5, 6, 7]
    unsaid = {item["what"]: item["why"] for item in document["unsaid"]}
    assert "no launch calls" in unsaid["whether the host was late"]
    assert "names lie" in unsaid["the kind of some communication for certain"]
    assert "could not be matched" in unsaid["waiting apart from transferring, on every rank"]


def test_one_line_per_refused_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    HandMade(0, 3).step(1, 0, 60).op("aten::mm", 0, 10).write(tmp_path / "rank0.json")
    (tmp_path / "rank1.json").write_text('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "du')
    (tmp_path / "rank2\x1b[31m.json").write_bytes(b"")
    status, out, err = doctor(capsys, tmp_path)
    assert status == 2
    assert "rank0.json" in out
    assert "can be analysed" not in out
    assert len(err) == 2
    assert all(line.startswith("refused: ") for line in err)
    assert "cut at byte" in err[0]
    assert "the file is empty" in err[1]
    assert "\x1b" not in "".join(err)


def test_files_that_are_fine_alone_but_not_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        HandMade(None).step(1, 0, 60).op("aten::mm", 0, 10).write(tmp_path / f"{name}.json")
    status, out, err = doctor(capsys, tmp_path)
    assert status == 2
    assert out.count("rank unknown") == 2
    assert len(err) == 1
    assert "--rank FILE=N" in err[0]
    given = ("--rank", f"{tmp_path}/a.json=0", "--rank", f"{tmp_path}/b.json=1")
    status, out, err = doctor(capsys, tmp_path, *given)
    assert (status, err) == (0, [])
    assert "rank 1 (as given)" in out


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = doctor(capsys, tmp_path / "nowhere")
    assert (status, out, len(err)) == (2, "", 1)


def test_what_the_analysis_left_out_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = HandMade(0, 1, "nccl").step(1, 0, 100).step(2, 100, 200).kernel("gemm", 10, 50, correlation=1, launch=5)
    trace.add("cuda_runtime", "cudaLaunchKernel", 110, 111, correlation=9)
    status, out, _ = doctor(capsys, trace.write(tmp_path / "rank0.json"))
    assert status == 0
    assert "step 2 launched work that has no device records" in out
