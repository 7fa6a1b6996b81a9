"""Reading: exact nanoseconds, any chunking, compression by content, repairs counted, loss refused."""

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from handmade import ORIGIN_US, HandMade
from hypothesis import given
from hypothesis import strategies as st

from shardscope.errors import DamagedTrace, EmptyTrace, RankError, TraceError
from shardscope.trace import source, stream
from shardscope.trace.events import Class, class_of
from shardscope.trace.find import load_files, rank_of_name
from shardscope.trace.numbers import ABSENT, nanoseconds, parse_microseconds
from shardscope.trace.read import read_timeline
from shardscope.trace.repair import repair


def parse(*texts: str) -> list[int]:
    return nanoseconds([msgspec.Raw(text.encode()) for text in texts]).tolist()


@given(st.lists(st.tuples(st.integers(0, 1_900_000_000_000_000), st.integers(0, 3), st.integers(0, 999)), min_size=1))
def test_times_are_exact_to_the_nanosecond(entries: list[tuple[int, int, int]]) -> None:
    texts, wanted = [], []
    for whole, digits, fraction in entries:
        text = f"{fraction:03d}"[:digits]
        texts.append(f"{whole}.{text}" if digits else str(whole))
        wanted.append(whole * 1000 + int(text.ljust(3, "0")))
    assert parse(*texts) == wanted
    assert parse(*(f'"{text}"' for text in texts)) == wanted


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1.2345", 1235),
        ("1e3", 1_000_000),
        ("1.5E-3", 2),
        ("-3.5", -3500),
        ('" 7 "', 7000),
        ("null", None),
        ("nan", None),
        ("", None),
        ('"12:30"', None),
        ("1e999999999", None),
        ("9" * 30, None),
        ("1.2.3", None),
    ],
)
def test_odd_numbers(text: str, ns: int | None) -> None:
    assert parse_microseconds(text.encode()) == ns
    assert parse("1", text) == [1000, ABSENT if ns is None else ns]


def big_trace(layout: str) -> bytes:
    """300 operators with hostile names, as different writers lay it out."""
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": f'op "{{[,}}]" {i}',
            "pid": 1,
            "tid": 1,
            "ts": i,
            "dur": 1,
            "args": {"a": [{"ph": 1}]},
        }
        for i in range(300)
    ]
    document = {"schemaVersion": 1, "traceEvents": events, "distributedInfo": {"rank": 3}, "note": ["}, {", {"ph": 1}]}
    if layout == "compact":
        return json.dumps(document, separators=(",", ":")).encode()
    if layout == "indented":
        return json.dumps(document, indent=4).encode()
    if layout == "events first":
        return json.dumps({"traceEvents": events, **document}).encode()
    if layout == "list":
        return json.dumps(events).encode()
    return json.dumps(document).encode()


@pytest.mark.parametrize("layout", ["plain", "compact", "indented", "events first", "list"])
@pytest.mark.parametrize("batch", [1, 700, 1 << 20])
def test_every_chunking_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, batch: int
) -> None:
    monkeypatch.setattr(stream, "_BATCH_BYTES", batch)
    path = tmp_path / "trace.json"
    path.write_bytes(big_trace(layout))
    timeline = read_timeline(path)
    assert len(timeline) == 300
    assert timeline.start.tolist() == [i * 1000 for i in range(300)]
    assert timeline.names[timeline.name[7]] == 'op "{[,}]" 7'
    assert timeline.metadata.get("distributedInfo") == (None if layout == "list" else {"rank": 3})


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz", "trace.pt"])
@pytest.mark.parametrize("packed", [False, True])
def test_the_first_bytes_tell_the_compression(tmp_path: Path, name: str, packed: bool) -> None:
    path = tmp_path / name
    text = big_trace("plain")
    # Two members, with padding between them, as some writers append.
    path.write_bytes(gzip.compress(text[:5000]) + b"\0" * 7 + gzip.compress(text[5000:]) if packed else text)
    assert len(read_timeline(path)) == 300


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.97])
def test_a_cut_file_is_refused_and_can_be_salvaged(tmp_path: Path, packed: bool, share: float) -> None:
    text = big_trace("plain")
    data = gzip.compress(text) if packed else text
    path = tmp_path / "trace.json"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises((DamagedTrace, EmptyTrace), match=r"trace\.json"):
        read_timeline(path)
    if share > 0.1:
        timeline = read_timeline(path, salvage=True)
        assert timeline.cut
        assert 0 < len(timeline) <= 300
        assert timeline.start.tolist() == [i * 1000 for i in range(len(timeline))]


@pytest.mark.parametrize(
    ("broken", "mended", "kind"),
    [
        (rb'{"name": "C:\new\ops", "a": 1}', {"name": r"C:\new\ops", "a": 1}, "bad_escape"),
        (rb'{"name": "dir\", "a": 1}', {"name": "dir\\", "a": 1}, "bad_escape"),
        (b'{"name": "say "hi" twice", "a": 1}', {"name": 'say "hi" twice', "a": 1}, "bad_escape"),
        (b'{"name": "tab\there", "a": 1}', {"name": "tab\there", "a": 1}, "bad_bytes"),
        (b'{"name": "\xff\xfe", "a": 1}', {"name": "��", "a": 1}, "bad_bytes"),
        (b'{"a": nan, "b": [-inf, Infinity]}', {"a": None, "b": [None, None]}, "not_a_number"),
        (b'{"a": [1, 2, ], }', {"a": [1, 2]}, "trailing_comma"),
    ],
)
def test_repairs(broken: bytes, mended: object, kind: str) -> None:
    text, counts = repair(broken)
    assert msgspec.json.decode(text) == mended
    assert set(counts) == {kind}


@given(
    st.dictionaries(st.text(max_size=8), st.one_of(st.text(), st.integers(), st.lists(st.text(max_size=5))), max_size=5)
)
def test_repair_leaves_valid_json_alone(document: dict[str, object]) -> None:
    for text in (json.dumps(document), json.dumps(document, ensure_ascii=False), json.dumps(document, indent=1)):
        data = text.encode("utf-8", errors="surrogatepass")
        try:
            data.decode()
        except UnicodeDecodeError:
            continue
        assert repair(data) == (data, {})


def test_elements_that_are_no_events_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = HandMade().step(1, 0, 10).op("aten::mm", 0, 5)
    trace.events += [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1, "args": "text"}, 7, None]  # type: ignore[list-item]
    timeline = read_timeline(trace.write(tmp_path / "t.json"))
    assert len(timeline) == 2
    assert timeline.warnings == {"malformed_event": 3}


def test_faults_inside_arguments_do_not_lose_the_event(tmp_path: Path) -> None:
    """Arguments are read apart from their event: bad bytes are mended and counted, only nonsense is left out."""
    trace = HandMade(0, 2, "nccl").step(1, 0, 10)
    for number in range(3):
        trace.kernel(f"k{number}", number, number + 1, 20, correlation=number + 1, **{"Collective name": "allreduce"})
    trace.op("aten::mm", 3, 4, size=7).op("aten::null", 4, 5)
    path = trace.write(tmp_path / "t.json")
    text = (
        path.read_bytes()
        .replace(b'"allreduce"', b'"all\xffreduce"', 1)
        .replace(b'"correlation": 3', b'"correlation": 1e999')
    )
    path.write_bytes(text.replace(b'"size": 7', b'"size": 1e999'))
    timeline = read_timeline(path)
    assert timeline.warnings == {"bad_bytes": 1, "malformed_event": 1}
    kernels = timeline.rows(Class.KERNEL).tolist()
    assert [timeline.names[timeline.name[row]] for row in kernels] == ["k0", "k1"]
    assert [timeline.args[row].collective for row in kernels] == ["all\N{REPLACEMENT CHARACTER}reduce", "allreduce"]
    assert timeline.correlation[kernels].tolist() == [1, 2]
    assert len(timeline.rows(Class.HOST_OP)) == 2


def test_strange_durations_and_doubled_records(tmp_path: Path) -> None:
    trace = HandMade().step(1, 0, 10)
    trace.kernel("gemm", 1, 2, correlation=5).kernel("gemm", 1, 2, correlation=5).kernel("gemm", 1, 2, correlation=6)
    trace.events.append({"ph": "X", "cat": "cpu_op", "name": "aten::a", "pid": 1, "tid": 1, "ts": ORIGIN_US, "dur": -4})
    trace.events.append({"ph": "X", "cat": "cpu_op", "name": "aten::b", "pid": 1, "tid": 1, "ts": ORIGIN_US})
    trace.events.append({"ph": "X", "cat": "cpu_op", "name": "aten::c", "pid": 1, "tid": 1, "dur": 3})
    timeline = read_timeline(trace.write(tmp_path / "t.json"))
    assert timeline.warnings == {"negative_duration": 1, "no_duration": 1, "no_time": 1, "duplicate_record": 1}
    assert len(timeline.rows(Class.KERNEL)) == 2
    assert (timeline.end >= timeline.start).all()


def test_memory_stays_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the noise costs no more memory: one batch at a time, and only what can be time is kept."""
    monkeypatch.setattr(stream, "_BATCH_BYTES", 1 << 16)
    monkeypatch.setattr(source, "CHUNK_BYTES", 1 << 16)
    peaks = []
    for filler in (5_000, 50_000):
        path = tmp_path / f"{filler}.json"
        noise = {
            "ph": "X",
            "cat": "python_function",
            "name": "f",
            "pid": 1,
            "tid": 1,
            "ts": 1.0,
            "dur": 1.0,
            "args": {"Ev Idx": 1},
        }
        trace = HandMade().step(1, 0, 10)
        trace.events += [noise] * filler
        trace.write(path)
        del trace
        tracemalloc.start()
        timeline = read_timeline(path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert timeline.dropped == {"python_function": filler}
    assert peaks[1] < 1.3 * peaks[0]


@pytest.mark.parametrize(
    ("category", "found"),
    [
        ("Kernel", Class.KERNEL),
        ("concurrent_kernel", Class.KERNEL),
        ("Operator", Class.HOST_OP),
        ("mtia_runtime", Class.RUNTIME),
        ("gpu_memset", Class.COPY),
        ("gpu_user_annotation", Class.DROPPED),
        ("cuda_sync", Class.DROPPED),
        ("overhead", Class.DROPPED),
        ("python_function", Class.DROPPED),
    ],
)
def test_categories(category: str, found: Class) -> None:
    assert class_of(category) is found


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3_trace.json", 3),
        ("dp0_pp0_tp3_rank11.pt.trace.json", 11),
        ("trace_rank-7.json.gz", 7),
        ("worker2.1741988781000000000.pt.trace.json", 2),
        ("r5-2025-3-14.1741988781221064630.pt.trace.json.gz", 5),
        ("gpuhost_4021.1718116821592181759.pt.trace.json", None),
        ("frank3.json", None),
    ],
)
def test_ranks_in_file_names(name: str, rank: int | None) -> None:
    assert rank_of_name(name) == rank


def test_the_file_itself_knows_its_rank_better_than_its_name(tmp_path: Path) -> None:
    HandMade(4, 8).step(1, 0, 5).write(tmp_path / "rank1.json")
    HandMade(None).step(1, 0, 5).write(tmp_path / "rank2.json")
    assert [rank for rank, _ in load_files([tmp_path]).timelines] == [2, 4]
    assert [rank for rank, _ in load_files([tmp_path], ranks={tmp_path / "rank2.json": 6}).timelines] == [4, 6]


def test_files_of_one_rank_must_be_cycles(tmp_path: Path) -> None:
    first = HandMade(0).step(1, 0, 5).write(tmp_path / "a.json")
    HandMade(0).step(2, 5, 9).op("aten::mm", 6, 7).write(tmp_path / "b.json")
    ((rank, timeline),) = load_files([tmp_path]).timelines
    assert rank == 0
    assert [path.name for path in timeline.parts] == ["a.json", "b.json"]
    first.write_bytes((tmp_path / "b.json").read_bytes())
    with pytest.raises(RankError, match=r"a\.json and b\.json both claim rank 0"):
        load_files([tmp_path])


def test_missing_paths_and_empty_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nowhere"):
        load_files([tmp_path / "nowhere"])
    with pytest.raises(TraceError, match="no trace files"):
        load_files([tmp_path])


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank0.json")
    with pytest.raises(TraceError, match="not a regular file"):
        list(source.Source(tmp_path / "rank0.json"))
