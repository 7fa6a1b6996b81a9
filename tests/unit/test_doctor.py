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
        "not counted as time: 1 event of category python_function",
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


def test_the_axis_is_the_one_that_attribute_finds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of four ranks 0 and 2 only pass messages, as far apart as a pipeline's stages are; 0 and 1 are named; nothing
    goes over all four, nor over 0 and 3."""
    groups = [
        {"pg_name": str(place), "pg_desc": name, "pg_size": len(ranks), "ranks": ranks}
        for place, (name, ranks) in enumerate(
            [("default_pg", [0, 1, 2, 3]), ("mesh_tp", [0, 1]), ("undefined", [0, 2]), ("undefined", [0, 3])]
        )
    ]
    trace = HandMade(0, 4, "nccl", groups).step(1, 0, 100).kernel("gemm", 0, 50)
    trace.kernel("ncclDevKernel_SendRecv", 60, 70, 20, **{"Collective name": "send", "Process Group Name": "2"})
    path = trace.write(tmp_path / "rank0.json")
    _, out, _ = doctor(capsys, path)
    (line,) = [line.strip() for line in out.splitlines() if "process groups" in line]
    assert line == (
        "process groups: 0: carries nothing in these traces, 4 ranks; mesh_tp (1): tensor (by its name), 2 ranks; "
        "2: pipeline (by its ranks and traffic), 2 ranks; 3: carries nothing in these traces, 2 ranks"
    )
    _, out, _ = doctor(capsys, path, "--format", "json")
    found = [(group["axis"], group["axis_from"]) for group in json.loads(out)["files"][0]["groups"]]
    assert found == [("unknown", "unused"), ("tensor", "name"), ("pipeline", "traffic"), ("unknown", "unused")]


def test_our_own_run_says_the_axis_by_its_record(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = doctor(capsys, Path(__file__).parents[1] / "data" / "runs" / "zero2")
    assert status == 0
    assert "rank 0 (by run.json) of 2, cpu" in out
    assert "data (by run.json)" in out
    assert "which parallelism communicates" not in out


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
