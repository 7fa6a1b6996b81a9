"""The drawings: true of their numbers, the same bytes each time, and readable without eyes."""

import csv
import io
import re
import xml.etree.ElementTree as ET  # the SVG is our own
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from selection_runs import Fake, attribution_of, nine, write

from shardscope.attribution.analysis import analysis_of
from shardscope.attribution.api import attribute_paths
from shardscope.attribution.micro_batches import HEADER, micro_batch_rows
from shardscope.attribution.result import Clock, Straggler
from shardscope.errors import ResultError
from shardscope.report.attributions import attributions
from shardscope.report.figure_plane import points
from shardscope.report.figure_ranks import MOST_RANKS, rank_bars, rank_times
from shardscope.report.figure_set import FigureSet, figure_set, stem_of
from shardscope.report.figure_svg import THEME
from shardscope.report.figure_timeline import LEVELS, Lane, aligned, read_lanes, shares, timeline
from shardscope.report.figures import Words, label
from shardscope.report.html_svg import inlined
from shardscope.report.sentences import Language
from shardscope.selection.api import decide
from shardscope.selection.decision import Decision
from shardscope.selection.terms import Constraints, Standing
from shardscope.vocabulary import Axis, Kind

LANGUAGES = [Language("en"), Language("zh")]
LIMITS = Constraints(memory_cap_mb=60, max_communication_fraction=0.25, min_throughput_tokens_per_s=1000)
RUN = Path(__file__).parents[1] / "data" / "runs" / "pipeline_1f1b"
SVG = "{http://www.w3.org/2000/svg}"
MARKS = "\n".join(
    ["rank,step,phase,micro_batch,start_ns,end_ns", "0,2,forward,0,2000000000,2020000000",
     "0,2,forward,0,2020000010,2021000000", "0,2,backward,0,2050000000,2090000000"]
)  # fmt: skip


def decided(tmp_path: Path, fakes: list[Fake], limits: Constraints = LIMITS) -> tuple[Decision, FigureSet]:
    found = write(tmp_path, fakes)
    for name, (_, folder) in found.items():
        if name == "pipeline_1f1b":
            (folder / "micro_batches.csv").write_text(MARKS)
    decision = decide("gpt3m", found, limits)
    folders = {("gpt3m", name): folder for name, (_, folder) in found.items()}
    return decision, figure_set(decision, folders, attributions(decision, folders), "gpt3m", LANGUAGES)


def rows(table: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table)))


def test_every_drawing_is_deterministic_described_and_has_its_numbers(tmp_path: Path) -> None:
    (_, one), (_, two) = decided(tmp_path / "a", nine()), decided(tmp_path / "b", nine())
    stems = [drawing.stem for drawing in one.drawings]
    assert len(stems) == len(set(stems)) == 13
    for first, second in zip(one.drawings, two.drawings, strict=True):
        assert first == second and len(first.svg) < 60_000
        root = ET.fromstring(first.svg)
        title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
        assert title is not None and title.text and "gpt3m" in title.text
        assert description is not None and description.text and len(description.text) > 40
        shown = [element.text for element in root.iter(f"{SVG}text")]
        assert first.words and set(first.words) <= set(shown), first.stem
        assert all(chinese != english for english, chinese in first.words.items() if english.isalpha()), first.stem
        assert rows(first.csv)


def test_memory_bars_add_up_and_show_the_fullest_rank(tmp_path: Path) -> None:
    decision, found = decided(tmp_path, nine())
    assert found.memory is not None
    for row in rows(found.memory.csv):
        parts = sum(float(row[f"{part}_mb"]) for part in ("parameters", "gradients", "optimizer", "activations"))
        assert parts == pytest.approx(float(row["peak_mb"]), abs=0.01)
        peak = decision.strategy(row["strategy"]).peak_bytes.value
        assert peak is not None and float(row["peak_mb"]) <= peak / 1e6 + 0.001
    assert "memory cap 60 MB" in found.memory.svg and "The memory cap is 60 MB." in found.memory.svg


def test_front_and_intervals(tmp_path: Path) -> None:
    decision, found = decided(tmp_path, nine())
    known = {point.name: point for point in points(decision)}
    choices = [point for point in known.values() if point.role != "reference"]
    for point in choices:
        beaten = any(
            other.memory <= point.memory and other.throughput >= point.throughput and other != point
            for other in choices
        )
        assert point.on_front is not beaten, point.name
    assert not known["single"].on_front and known["single"].role == "reference"
    assert known["zero1"].role == "recommended" and known["ddp"].role == "fails"
    assert known["ddp"].low is None  # what all are compared with has no interval against itself
    change = decision.strategy("zero3").throughput.change
    assert change is not None and change.low is not None and known["zero3"].low is not None
    base = known["zero3"].throughput / (1 + change.difference)
    assert known["zero3"].low == pytest.approx(base * (1 + change.low))
    assert found.plane is not None and "throughput floor 1,000 tokens/s" in found.plane.svg
    assert {row["strategy"] for row in rows(found.plane.csv) if row["on_front"] == "True"} == {
        name for name, point in known.items() if point.on_front
    }


def test_limits_far_away_do_not_squeeze_the_plane(tmp_path: Path) -> None:
    limits = Constraints(memory_cap_mb=80_000, min_throughput_tokens_per_s=1_000_000)
    _, found = decided(tmp_path, nine(), limits)
    assert found.plane is not None and found.memory is not None
    assert "80,000 MB, beyond the right edge" in found.plane.svg and "beyond the upper edge" in found.plane.svg
    assert ">70,000<" not in found.plane.svg and "memory cap" not in found.memory.svg.split("</desc>")[1]


def test_who_waits_for_whom() -> None:
    fake = Fake("ddp", parts={Kind.ALL_REDUCE: (Axis.DATA, 6.0, 3.0, 4.0)})
    late = [
        Straggler(step=2, rank=0, last=0, collectives=4, caused_ns=0),
        Straggler(step=2, rank=1, last=3, collectives=4, caused_ns=6_000_000),
    ]
    result = msgspec.structs.replace(attribution_of(fake), stragglers=late)
    first, second = rank_times("ddp", result)
    assert first.caused == 0 and second.caused == pytest.approx(6 / 3)  # three steps
    assert first.parts["transferring"] == pytest.approx(6) and first.parts["waiting"] == pytest.approx(3)
    assert rank_times("single", attribution_of(Fake("single"))) == []
    unknown = attribution_of(fake)
    for rank in unknown.ranks:
        rank.steps = [msgspec.structs.replace(step, attributed_wait_ns=None) for step in rank.steps]
    assert rank_times("ddp", unknown)[0].parts == pytest.approx(
        {"transferring": 0, "waiting": 0, "unknown": 9, "bubble": 0}
    )


def test_many_ranks_are_drawn_in_part_and_listed_in_full() -> None:
    result = attribution_of(Fake("ddp", parts={Kind.ALL_REDUCE: (Axis.DATA, 6.0, 3.0, 4.0)}))
    ranks = [msgspec.structs.replace(result.ranks[0], rank=rank) for rank in range(40)]
    drawing = rank_bars("w", {"ddp": msgspec.structs.replace(result, ranks=ranks)}, Words(*LANGUAGES), "ranks-w")
    assert drawing is not None
    assert len(rows(drawing.csv)) == 40 and drawing.svg.count(">rank ") == MOST_RANKS


PIECES = st.lists(
    st.tuples(st.integers(1, 5_000), st.sampled_from(["compute", "all_reduce:wait", "bubble", "host_other"])),
    min_size=1, max_size=80,
)  # fmt: skip


@given(PIECES, st.integers(1, 40))
def test_lanes_keep_the_totals(pieces: list[tuple[int, str]], columns: int) -> None:
    ends = np.cumsum([length for length, _ in pieces])
    starts = np.concatenate(([0], ends[:-1]))
    lane = Lane(0, starts.astype(np.int64), ends.astype(np.int64), [category for _, category in pieces])
    edges = np.linspace(0, int(ends[-1]), columns + 1)
    found = shares(lane, edges)
    assert np.allclose(sum(found.values()), 1)
    moment = ends[-1] / columns
    for name, share in found.items():
        spent = sum(length for length, category in pieces if category == name)
        assert abs(float(share.sum()) * moment - spent) <= len(found) * moment / LEVELS
        assert np.allclose(share * LEVELS, np.round(share * LEVELS))


def test_lanes_are_read_with_their_micro_batches(tmp_path: Path) -> None:
    _, found = decided(tmp_path, nine())
    folder = tmp_path / "data" / "gpt3m" / "pipeline_1f1b"
    first, second = read_lanes(folder)
    assert [(mark.backward, mark.index, mark.start) for mark in first.micro_batches] == [
        (False, 0, 2_000_000_000), (True, 0, 2_050_000_000),
    ]  # fmt: skip
    assert first.micro_batches[0].end == 2_021_000_000 and second.micro_batches == ()
    svg = found.timelines["pipeline_1f1b"].svg
    assert ">F0<" in svg and ">B0<" in svg and ">F0<" not in found.timelines["zero1"].svg
    for broken in ("rank,category\n0,compute\n", "rank,category,start_ns,end_ns\n0,compute,x,2\n"):
        (folder / "intervals.csv").write_text(broken)
        with pytest.raises(ResultError, match=r"intervals\.csv: malformed"):
            read_lanes(folder)
    (folder / "intervals.csv").unlink()
    with pytest.raises(ResultError, match="attribute the run again"):
        read_lanes(folder)


def test_lanes_are_drawn_on_one_clock(tmp_path: Path) -> None:
    decided(tmp_path, nine())
    lanes = read_lanes(tmp_path / "data" / "gpt3m" / "pipeline_1f1b")
    fake = next(fake for fake in nine() if fake.name == "pipeline_1f1b")
    result = msgspec.structs.replace(
        attribution_of(fake), clock=Clock(applied=True, offset_ns={"0": 7, "1": -1000}, residual_ns=1)
    )
    first, second = aligned(lanes, result)
    for lane, own, by in ((first, lanes[0], 7), (second, lanes[1], -1000)):
        assert (own.starts - lane.starts == by).all() and (own.ends - lane.ends == by).all()
    assert lanes[0].micro_batches[0].start - first.micro_batches[0].start == 7
    apart = msgspec.structs.replace(result, clock=Clock(applied=False, offset_ns={"1": -1000}, residual_ns=None))
    assert (aligned(lanes, apart)[1].starts == lanes[1].starts).all()
    # Lanes that start half a step apart need a longer axis.
    late = Clock(applied=True, offset_ns={"1": -int(fake.step / 2 * 1e6)}, residual_ns=1)
    drawn = [
        timeline("w", "pipeline_1f1b", lanes, msgspec.structs.replace(result, clock=clock), Words(*LANGUAGES), "t").svg
        for clock in (late, apart.clock)
    ]
    ends = [max(int(tick) for tick in re.findall(r">(\d+) ms<", svg)) for svg in drawn]
    assert ends[0] > fake.step >= ends[1]


def test_micro_batches_of_a_real_run() -> None:
    result = attribute_paths([RUN])
    found = [dict(zip(HEADER, row, strict=True)) for row in micro_batch_rows(analysis_of(result))]
    for rank in result.ranks:
        mine = [row for row in found if row["rank"] == rank.rank]
        step = next(step for step in rank.steps if step.step == result.summary_step)
        assert {row["step"] for row in mine} == {result.summary_step}
        for phase in ("forward", "backward"):
            assert {row["micro_batch"] for row in mine if row["phase"] == phase} == {0, 1}
        for row in mine:
            assert step.start_ns <= row["start_ns"] < row["end_ns"] <= step.start_ns + step.window_ns
    first = [row["phase"] for row in found if row["rank"] == 0]
    assert first[:2] == ["forward", "forward"] and first[2] == "backward"  # one forward more than backwards: 1F1B


def test_what_is_wrong_is_not_drawn(tmp_path: Path) -> None:
    decision, found = decided(tmp_path, [*nine()[:3], Fake("zero3", gradient_error=0.5)])
    assert decision.strategy("zero3").standing is Standing.DISQUALIFIED
    assert all("zero3" not in drawing.svg for drawing in found.drawings) and "zero3" not in found.timelines


def test_inside_a_page_a_drawing_takes_the_pages_colours_and_words(tmp_path: Path) -> None:
    _, found = decided(tmp_path, nine())
    for drawing in found.drawings:
        page = str(inlined(drawing, 7))
        assert not any(colour in page for colour in THEME)
        assert "var(--ink)" in page and "url(#d7-" in page
        for english, chinese in drawing.words.items():
            pair = f'class="in-en" lang="en">{english}</tspan><tspan class="in-zh" lang="zh-Hans">{chinese}</tspan>'
            assert pair in page, english


def test_names_become_labels_and_file_names() -> None:
    assert label("a\nb\u202e" + "x" * 50) == "a b\N{REPLACEMENT CHARACTER}" + "x" * 25 + "\N{HORIZONTAL ELLIPSIS}"
    assert stem_of("../a b", set()) == ".._a_b" and stem_of("a", {"a"}) == "a_"
    assert len(stem_of("x" * 500, set())) == 100
