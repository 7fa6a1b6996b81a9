"""Merged traces: everything of the files is there, nothing overlaps, our own tracks say what the ledger says."""

import json
import random
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handmade import ORIGIN_US, HandMade, dims
from hypothesis import given
from hypothesis import strategies as st
from perfetto import Trace, read_perfetto

from shardscope.attribution.api import attribute_paths
from shardscope.attribution.result import Attribution
from shardscope.errors import DamagedTrace, EmptyTrace, RankError, ResultError, TraceError
from shardscope.view.lanes import assign_lanes
from shardscope.view.merge import merge

US = 1000


def reduce(trace: HandMade, arrival: float, start: float, end: float) -> HandMade:
    """An asynchronous all-reduce: the call, and gloo's work on a thread of its own."""
    trace.op("c10d::allreduce_", arrival, arrival + 2, **dims(64))
    return trace.span("gloo:all_reduce", start, end, tid=7, **dims(64))


def message(trace: HandMade, peer: int, send: bool, start: float, end: float) -> HandMade:
    name, span = ("c10d::send", "gloo:send") if send else ("c10d::recv_", "gloo:recv")
    inputs = {"Concrete Inputs": ["", "", str(peer), "0"], "Input Dims": [[[4]], [], [], []]}
    return trace.op(name, start, start + 0.5, **inputs).span(span, start + 0.2, end, tid=1)


def two_ranks(folder: Path) -> Path:
    """Rank 1 computes longer before an all-reduce; two sends of rank 0 overlap without nesting."""
    folder.mkdir(parents=True, exist_ok=True)
    first, second = HandMade(0), HandMade(1)
    first.step(1, 0, 300).op("aten::mm", 1.001, 40.002).op("aten::add", 10, 20)
    second.step(1, 0, 300).op("aten::mm", 1, 80.5)
    reduce(first, 50, 52, 100.003)
    reduce(second, 90, 92, 100.003)
    message(first, 1, True, 110, 150)
    message(first, 1, True, 120, 170)
    message(second, 0, False, 115, 150)
    message(second, 0, False, 160, 170)
    for trace in (first, second):
        trace.op("aten::add_", 200, 250.123)
    first.write(folder / "rank0.json")
    second.write(folder / "rank1.json")
    return folder


def merged(folder: Path, output: Path, **options: Any) -> Trace:
    report = merge([folder], output, **options)
    trace = read_perfetto(output)
    own = [item for item in trace.slices if item.category.startswith("shardscope:")]
    assert (len(trace.slices) - len(own), len(own)) == (report.slices, report.own_slices)
    assert report.bytes == output.stat().st_size
    assert [process for _, process in processes(trace)] == report.ranks
    return trace


def processes(trace: Trace) -> list[tuple[int, str]]:
    return [track.process for track in trace.tracks.values() if track.process is not None]


def file_slices(folder: Path) -> Counter[tuple[str, int]]:
    """Names and lengths of all timed events of all files."""
    found: Counter[tuple[str, int]] = Counter()
    for path in folder.glob("*.json"):
        for event in json.loads(path.read_text())["traceEvents"]:
            if event["ph"] == "X":
                found[str(event["name"]), round(event["dur"] * 1000)] += 1
    return found


def check_attribution(trace: Trace, result: Attribution) -> None:
    """Per rank, step and category the attribution's slices add up to the ledger, and they fill the step."""
    by_step: dict[tuple[str, int | None], Counter[str]] = defaultdict(Counter)
    for item in trace.of("shardscope:attribution"):
        assert item.depth == 1
        by_step[trace.tracks[item.track].name, item.details.get("step")][item.name.split(":")[0]] += item.length
    for rank in result.ranks:
        for row in rank.steps:
            parts = by_step.pop((f"rank {rank.rank}", row.step))
            assert parts["compute"] == row.compute_ns
            assert parts["bubble"] == (row.bubble_ns or 0)
            assert parts["host_other"] == row.host_other_ns
            assert parts["copies"] == row.copies_exposed_ns
            for kind, spent in row.attributed_ns.items():
                assert parts[kind] == spent
            assert sum(parts.values()) == row.window_ns
    assert not by_step


def test_everything_is_there_once(tmp_path: Path) -> None:
    folder = two_ranks(tmp_path / "job")
    trace = merged(folder, tmp_path / "out.pftrace.gz")
    of_files = [item for item in trace.slices if not item.category.startswith("shardscope:")]
    assert Counter((item.name, item.length) for item in of_files) == file_slices(folder)
    assert json.loads(next(item for item in of_files if item.name == "c10d::allreduce_").details["args"]) == dims(64)


def test_attribution_equals_the_ledger(tmp_path: Path) -> None:
    folder = two_ranks(tmp_path / "job")
    check_attribution(merged(folder, tmp_path / "out.pftrace.gz"), attribute_paths([folder]))


def test_overlapping_slices_get_lanes_of_one_track(tmp_path: Path) -> None:
    trace = merged(two_ranks(tmp_path / "job"), tmp_path / "out.pftrace.gz")
    sends = {item.track for item in trace.slices if item.name == "gloo:send"}
    lanes = [trace.tracks[track] for track in sends]
    assert len(lanes) == 2
    assert lanes[0] == lanes[1]
    assert lanes[0].merge_key is not None
    # Threads of other ranks have the same name, and must not be drawn as lanes of this one.
    named_alike = {track.merge_key for uuid, track in trace.tracks.items() if track.name == "thread 1"}
    assert len(named_alike) == 2


def test_arrows_lead_from_sends_to_receives_and_from_the_last_rank(tmp_path: Path) -> None:
    folder = two_ranks(tmp_path / "job")
    report = merge([folder], tmp_path / "out.pftrace.gz")
    trace = read_perfetto(tmp_path / "out.pftrace.gz")
    ends: dict[int, list[Any]] = defaultdict(lambda: [None, None])
    for item in trace.slices:
        for flow in item.flows_out:
            assert ends[flow][0] is None
            ends[flow][0] = item
        for flow in item.flows_in:
            assert ends[flow][1] is None
            ends[flow][1] = item
    assert report.arrows == len(ends) == 3
    for source, target in ends.values():
        assert source.start <= target.start < target.end
        assert trace.root(source.track) != trace.root(target.track)
    named = Counter((source.name, trace.root(source.track), target.name) for source, target in ends.values())
    assert named == {
        ("all_reduce:transfer", "rank 1", "all_reduce:transfer"): 1,  # rank 1 came last
        ("send to rank 1:transfer", "rank 0", "receive from rank 0:transfer"): 2,
    }


def test_a_send_that_is_over_before_its_receive_is_posted_still_has_its_arrow(tmp_path: Path) -> None:
    first, second = HandMade(0).step(1, 0, 100), HandMade(1).step(1, 0, 100)
    message(first, 1, True, 10, 12).op("aten::mm", 20, 30).write(tmp_path / "rank0.json")
    message(second, 0, False, 40, 45).op("aten::mm", 50, 60).write(tmp_path / "rank1.json")
    trace = merged(tmp_path, tmp_path / "out.pftrace.gz")
    (source,) = [item for item in trace.slices if item.flows_out]
    (target,) = [item for item in trace.slices if item.flows_in]
    assert (source.name[:4], target.name[:7]) == ("send", "receive")
    assert source.start < target.start


# A launch and its kernel; an end at no slice; one that would run back in time.
ARROWS = ((9, "s", 1, 10), (9, "f", 7, 40), (9, "f", 7, 90), (8, "s", 7, 40), (8, "f", 1, 10))


def test_arrows_of_the_trace_are_kept_with_numbers_of_their_own_per_rank(tmp_path: Path) -> None:
    for rank in (0, 1):
        trace = HandMade(rank, backend="nccl").step(1, 0, 100).op("aten::mm", 5, 20)
        trace.kernel("gemm", 40, 60, correlation=9, launch=10)
        for number, phase, tid, at in ARROWS:
            event = {
                "ph": phase,
                "cat": "ac2g",
                "name": "ac2g",
                "id": number,
                "pid": 10,
                "tid": tid,
                "ts": ORIGIN_US + at,
            }
            trace.events.append(event)
        trace.write(tmp_path / f"rank{rank}.json")
    report = merge([tmp_path], tmp_path / "out.pftrace.gz")
    trace = read_perfetto(tmp_path / "out.pftrace.gz")
    assert report.trace_arrows == 2
    sources = [item for item in trace.slices if item.flows_out]
    targets = [item for item in trace.slices if item.flows_in]
    assert [item.name for item in sources] == ["cudaLaunchKernel"] * 2
    assert [item.name for item in targets] == ["gemm"] * 2
    assert [item.flows_out for item in sources] == [item.flows_in for item in targets]
    assert len({flow for item in sources for flow in item.flows_out}) == 2
    assert {trace.tracks[item.track].name for item in targets} == {"device 10 · stream 7"}


def test_clocks_are_aligned(tmp_path: Path) -> None:
    folder = two_ranks(tmp_path / "job")
    path = folder / "rank1.json"
    content = json.loads(path.read_text())
    for event in content["traceEvents"]:
        event["ts"] += 5000  # rank 1's clock is 5 ms ahead
    content["baseTimeNanoseconds"] += 3_000_000  # and counts from 3 ms later
    path.write_text(json.dumps(content))
    result = attribute_paths([folder])
    assert result.clock.offset_ns == {"1": 8_000_000}
    trace = merged(folder, tmp_path / "out.pftrace.gz")
    ends = {trace.root(item.track): item.end for item in trace.slices if item.name == "gloo:all_reduce"}
    assert ends["rank 0"] == ends["rank 1"]
    assert ends["rank 0"] == HandMade().top["baseTimeNanoseconds"] + (ORIGIN_US + 100) * US + 3
    check_attribution(trace, result)
    starts = {trace.root(item.track): item.start for item in trace.of("shardscope:steps")}
    assert starts == {trace.root(item.track): item.start for item in trace.slices if item.name == "ProfilerStep#1"}


def test_ranks_are_shown_in_their_order(tmp_path: Path) -> None:
    for rank in range(12):
        HandMade(rank, 12).step(1, 0, 10).op("aten::mm", 1, 5).write(tmp_path / f"rank{rank}.json")
    trace = merged(tmp_path, tmp_path / "out.pftrace.gz")
    shown = [track.name for track in trace.tracks.values() if track.parent is None and track.process is None]
    assert [" ".join(name.split()) for name in sorted(shown)] == [f"rank {rank}" for rank in range(12)]
    assert processes(trace) == [(rank + 1, f"rank {rank}") for rank in range(12)]


def test_memory_is_a_counter_per_device(tmp_path: Path) -> None:
    trace = HandMade().step(1, 0, 10).op("aten::mm", 1, 5)
    for at, total, kind, device in ((2, 100, 0, -1), (4, 50, 0, -1), (3, 7, 1, 0)):
        args = {"Total Allocated": total, "Bytes": 1, "Device Type": kind, "Device Id": device}
        trace.events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", "pid": 10, "tid": 1,
                             "ts": ORIGIN_US + at, "args": args})  # fmt: skip
    trace.write(tmp_path / "rank0.json")
    found = merged(tmp_path, tmp_path / "out.pftrace.gz")
    base = HandMade().top["baseTimeNanoseconds"] + ORIGIN_US * US
    values = {found.tracks[track].name: values for track, values in found.counters.items()}
    assert values == {
        "memory allocated · CPU": [(base + 2000, 100), (base + 4000, 50)],
        "memory allocated · CUDA 0": [(base + 3000, 7)],
    }
    assert all(found.tracks[track].is_counter for track in found.counters)


HOSTILE = [
    "</script><script>alert(1)</script>",
    '"quoted" \\ and `ticks` | *bold*',
    "line\nbreak\ttab\0nul",
    "é" * 3000,
]


def test_hostile_names_are_text(tmp_path: Path) -> None:
    trace = HandMade().step(1, 0, 100)
    for index, name in enumerate(HOSTILE):
        trace.op(name, 10 * index + 1, 10 * index + 5, **{name[:40]: name[:40]})
    trace.events.append({"ph": "M", "name": "thread_name", "pid": 10, "tid": 1, "args": {"name": HOSTILE[0]}})
    trace.write(tmp_path / "rank0.json")
    found = merged(tmp_path, tmp_path / "out.pftrace.gz")
    names = [item.name for item in found.slices if item.category == "cpu_op"]
    assert names[:3] == HOSTILE[:3]
    assert names[3] == "é" * 1000 + "…"
    assert HOSTILE[0] in {track.name for track in found.tracks.values()}


def test_a_file_of_no_rank_and_one_that_cannot_be_attributed(tmp_path: Path) -> None:
    trace = HandMade(None)
    trace.add("python_function", "f.py(1): main", 0, 50)
    trace.op("aten::mm", 1, 5).write(tmp_path / "x.json")
    found = merged(tmp_path, tmp_path / "out.pftrace.gz")
    assert processes(found) == [(1, "rank unknown · x.json")]
    assert [item.name for item in found.of("python_function")] == ["f.py(1): main"]
    (tmp_path / "x.json").write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "c", "name": "n"}]}))
    with pytest.raises(EmptyTrace):
        merge([tmp_path], tmp_path / "out.pftrace.gz")


def test_what_cannot_be_shown_is_counted(tmp_path: Path) -> None:
    trace = HandMade().step(1, 0, 100).op("aten::mm", 1, 5)
    trace.events += [
        {"ph": "X", "cat": "cpu_op", "name": "no time", "pid": 10, "tid": 1},
        {"ph": "B", "cat": "cpu_op", "name": "half", "pid": 10, "tid": 1, "ts": ORIGIN_US},
        {"ph": "X", "cat": "Trace", "name": "ancient", "pid": 10, "tid": 1, "ts": -1e15, "dur": 1},
    ]
    trace.add("cpu_op", "negative", 10, 8).add("cpu_op", "endless", 20, 21)
    del trace.events[-1]["dur"]
    trace.top["baseTimeNanoseconds"] = 0
    trace.write(tmp_path / "rank0.json")
    report = merge([tmp_path], tmp_path / "out.pftrace.gz")
    assert report.left_out == {"X without a time": 1, "B": 1, "X a day before the others": 1}
    shown = {item.name: item.length for item in read_perfetto(tmp_path / "out.pftrace.gz").of("cpu_op")}
    assert shown == {"aten::mm": 4 * US, "negative": 0, "endless": 0}


def test_several_profiling_cycles_are_one_rank(tmp_path: Path) -> None:
    for cycle in (0, 1):
        trace = HandMade().step(cycle + 1, 1000 * cycle, 1000 * cycle + 100)
        trace.op("aten::mm", 1000 * cycle + 1, 1000 * cycle + 50)
        trace.top["baseTimeNanoseconds"] += cycle * 3_000_000
        trace.write(tmp_path / f"rank0.{cycle}.json")
    result = attribute_paths([tmp_path])
    trace = merged(tmp_path, tmp_path / "out.pftrace.gz")
    assert len(processes(trace)) == 1
    first, second = [item for item in trace.slices if item.name == "aten::mm"]
    assert (first.length, second.length) == (49 * US, 49 * US)
    assert second.start - first.start == 1_000_000 + 3_000_000
    check_attribution(trace, result)


def test_devices_of_one_process_have_steps_of_their_own(tmp_path: Path) -> None:
    trace = HandMade(backend="nccl").step(1, 0, 100)
    trace.kernel("gemm", 10, 60, correlation=1, launch=5)
    trace.kernel("gemm", 20, 40, stream=8, correlation=2, launch=6)
    trace.events[-2]["args"]["device"] = 1
    trace.write(tmp_path / "rank0.json")
    found = merged(tmp_path, tmp_path / "out.pftrace.gz")
    spent = Counter({
        (found.tracks[item.track].name, item.name): item.length
        for item in found.of("shardscope:attribution") if item.name == "compute"
    })  # fmt: skip
    assert spent == {("rank 0", "compute"): 50 * US, ("steps · device 1", "compute"): 20 * US}


def test_a_cut_file_is_an_error_and_leaves_the_earlier_result(tmp_path: Path) -> None:
    folder = two_ranks(tmp_path / "job")
    output = tmp_path / "out.pftrace.gz"
    merge([folder], output)
    before = output.read_bytes()
    text = (folder / "rank1.json").read_text()
    (folder / "rank1.json").write_text(text[: len(text) - 40])
    with pytest.raises(DamagedTrace, match=r"rank1\.json"):
        merge([folder], output)
    assert output.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [output.name]
    assert len(processes(merged(folder, output, salvage=True))) == 2


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = two_ranks(tmp_path / "job")
    merge([folder], tmp_path / "a.pftrace.gz")
    merge([folder], tmp_path / "b.pftrace.gz")
    assert (tmp_path / "a.pftrace.gz").read_bytes() == (tmp_path / "b.pftrace.gz").read_bytes()
    assert (tmp_path / "a.pftrace.gz").read_bytes()[3:8] == bytes(5)  # no name and no time in gzip's head


def test_errors_name_the_cause(tmp_path: Path) -> None:
    folder = two_ranks(tmp_path / "job")
    (tmp_path / "file").touch()
    with pytest.raises(ResultError, match="cannot be written"):
        merge([folder], tmp_path / "file" / "out.pftrace.gz")
    with pytest.raises(TraceError, match="no such file"):
        merge([tmp_path / "absent"], tmp_path / "out.pftrace.gz")
    (folder / "rank0_again.json").write_bytes((folder / "rank0.json").read_bytes())
    with pytest.raises(RankError):
        merge([folder], tmp_path / "out.pftrace.gz")


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=40)


@given(spans)
def test_slices_of_a_lane_are_apart_or_nested(rows: list[tuple[int, int]]) -> None:
    table = sorted(((start, start + length) for start, length in rows), key=lambda row: (row[0], -row[1]))
    start, end = (np.array([row[i] for row in table], dtype=np.int64) for i in (0, 1))
    lanes = assign_lanes(start, end).tolist()
    for i, (a, b) in enumerate(table):
        for j in range(i):
            if lanes[i] == lanes[j]:
                assert not a < table[j][1] < b
    assert set(lanes) == set(range(max(lanes, default=-1) + 1))
    assert len(lanes) == len(rows)


def test_very_many_overlapping_slices_take_no_time() -> None:
    count = 20_000
    start = np.arange(count, dtype=np.int64)
    lanes = assign_lanes(start, start + count)
    assert len(set(lanes.tolist())) == count
    lanes = assign_lanes(start, start + 500)  # 500 are open at once, and lanes are used again
    assert set(lanes.tolist()) == set(range(500))
    for lane in range(500):
        assert np.all(np.diff(start[lanes == lane]) >= 500)


def test_nesting_deeper_than_perfetto_shows_goes_on_in_another_lane() -> None:
    start = np.arange(450, dtype=np.int64)
    lanes = assign_lanes(start, 1000 - start)
    assert np.bincount(lanes).tolist() == [200, 200, 50]


def test_random_slices_come_back_as_they_were(tmp_path: Path) -> None:
    """Many slices at few instants, some without length, on several threads: begin and end events never mix them up."""
    chance = random.Random(7)
    trace = HandMade(None).op("aten::first", 0, 40)
    for index in range(3000):
        start, length = chance.randrange(40), chance.choice((0, 0, 1, 2, 3, 10))
        trace.op(f"op{index}", start, start + length, tid=chance.randrange(4))
    trace.write(tmp_path / "x.json")
    found = merged(tmp_path, tmp_path / "out.pftrace.gz")
    seen = {item.name: (item.start % 1_000_000, item.length) for item in found.of("cpu_op")}
    expected = {
        event["name"]: (event["ts"] * US % 1_000_000, event["dur"] * US) for event in trace.events
    }  # fmt: skip
    assert seen == expected


@pytest.mark.slow
def test_merging_eight_ranks_of_50_mb_stays_within_500_mb(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from benchmarks.generate import write_trace

    base = tmp_path / "base"
    slices = write_trace(base, 50)
    text = base.read_text(encoding="utf-8")
    folder = tmp_path / "job"
    folder.mkdir()
    for rank in range(8):
        (folder / f"rank{rank}.json").write_text(text.replace('"rank": 0,', f'"rank": {rank},', 1), encoding="utf-8")
    code = (
        "import resource, sys\nfrom pathlib import Path\nfrom shardscope.view.merge import merge\n"
        "report = merge([Path(sys.argv[1])], Path(sys.argv[2]))\n"
        # Not ru_maxrss for this process: it remembers what the test runner held when it forked.
        "own = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "print(report.slices, report.arrows, own, child)"
    )
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "out.pftrace.gz")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250)
    found, arrows, own, largest_child = map(int, done.stdout.split())
    assert found >= 8 * slices
    assert arrows > 0
    assert own / 1024 < 500
    assert largest_child / 1024 < 500
