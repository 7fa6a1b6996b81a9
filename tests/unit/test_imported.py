"""Imported runs: their section of the configuration, and the reports on them, on traces written by hand."""

import re
import shutil
import xml.etree.ElementTree as ET  # the SVG is our own
from pathlib import Path
from typing import Any

import pytest
from tests.unit.handmade import HandMade
from tests.unit.imported_jobs import job

from shardscope.attribution.api import attribute_paths
from shardscope.attribution.result import SecondOpinion
from shardscope.attribution.stragglers import over_steps
from shardscope.attribution.tables import write_tables
from shardscope.config import ImportedRun, load
from shardscope.errors import ConfigError, ResultError
from shardscope.report.api import render
from shardscope.report.imported import render_run
from shardscope.report.imported_comparison import render_comparison
from shardscope.report.imported_units import rank_list, span, unit_of
from shardscope.selection.imported import read_imported, share_quantities, step_quantity
from shardscope.selection.terms import Verdict
from shardscope.trace.find import load_files

DEFAULTS = {"strategy_parameters": {}, "baseline": "ddp", "measure": {}, "failures": "record", "constraints": {}}


def tables(source: Path, folder: Path, **arguments: Any) -> Path:
    result = attribute_paths([source], **arguments)
    opinion = SecondOpinion(available=False, reason="HTA | is <not> here", version=None, rows=[])
    write_tables(result, folder, second_opinion=opinion)
    return folder


def report(tmp_path: Path, source: Path, name: str = "run", **arguments: Any) -> dict[str, str]:
    out = tmp_path / "reports"
    render_run(name, tables(source, tmp_path / "data" / name), source, out, **arguments)
    return {str(path.relative_to(out)): path.read_text(encoding="utf-8") for path in out.rglob("*") if path.is_file()}


def section(document: str, heading: str) -> str:
    return document.split(f"## {heading}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    found = [line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [cells for cells in found if set("".join(cells)) != {"-"}]


def test_the_report_says_what_the_traces_say(tmp_path: Path) -> None:
    files = report(tmp_path, job(tmp_path / "job"))
    assert sorted(files) == ["figures/run.svg", "run.md", "run.zh.md"]
    english = files["run.md"]
    answer = section(english, "The answer")
    assert "on the slowest of 2 ranks (median of 4 complete steps" in answer
    assert "The largest communication cost is all-reduce on the tensor axis" in answer
    assert (
        "Rank 1 makes the others wait most: 400 µs of exposed waiting over all complete steps, "
        "last to arrive in 4 of 4 collectives." in answer
    )
    header, first, second = rows(section(english, "Step ledger, rank by rank"))
    assert header[:2] == ["Rank", "Step, µs"]
    for cells in (first, second):
        numbers = [
            float(cell.replace(",", ""))
            for cell, name in zip(cells, header, strict=True)
            if name != "Flags" and cell != "–"
        ]
        assert numbers[1] == sum(numbers[2:]) > 900
    kind = dict(zip(*rows(section(english, "Communication by kind and axis")), strict=True))
    assert (kind["Kind"], kind["Busy, µs"]) == ("all-reduce", "250")
    assert (kind["Transferring, µs"], kind["Waiting, µs"]) == ("200", "50.0")
    assert rows(section(english, "Waiting against transferring"))[1:] == [
        ["1", "4", "4", "400"],
        ["0", "0", "4", "0"],
    ]
    assert "no send/receive between ranks" in section(english, "Pipeline bubble")
    assert rows(section(english, "How sure the kinds are"))[1] == ["mean", "100.0 %", "0.0 %", "0.0 %", "0.0 %"]
    limits = section(english, "What the traces do not say")
    assert "**Memory: the traces do not say.**" in limits and "**Throughput: the traces do not say.**" in limits
    assert str(tmp_path / "job" / "rank0.json") in section(english, "Open the traces")
    ET.fromstring(files["figures/run.svg"])


def test_both_languages_have_the_same_tables(tmp_path: Path) -> None:
    files = report(tmp_path, job(tmp_path / "job", ranks=(1,)))
    numbers = [re.findall(r"\d[\d,.]*", re.sub(r"`[^`]*`", "", files[name])) for name in ("run.md", "run.zh.md")]
    table_numbers = [
        [cell for line in files[name].splitlines() if line.startswith("|") for cell in re.findall(r"\d[\d.,]*", line)]
        for name in ("run.md", "run.zh.md")
    ]
    assert table_numbers[0] == table_numbers[1]
    assert numbers[0] and numbers[1]
    for text in files.values():
        assert not re.search(r"\{[{%]|None|nan\b|Sentence\(|&#39;", text)
        assert "\n\n\n" not in text


def test_one_rank_of_two_claims_no_waiting(tmp_path: Path) -> None:
    english = report(tmp_path, job(tmp_path / "job", ranks=(1,)))["run.md"]
    assert "**Rank 0 has no trace:**" in english
    assert "cannot be told from these traces" in section(english, "The answer")
    kind = dict(zip(*rows(section(english, "Communication by kind and axis")), strict=True))
    assert (kind["Transferring, µs"], kind["Waiting, µs"]) == ("–", "–")
    assert "No collective could be matched across ranks" in english
    assert "One rank: nothing to align." in english
    assert "there is one rank only" in section(english, "Pipeline bubble")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    folder = job(tmp_path / "a | b <script>alert(1)<script> `x` $y$ {z}")
    evil = 'x"|<img src=x onerror=alert(1)>`\n# heading'
    (folder / "rank0.json").rename(folder / "rank0 |<b>.json")
    (folder / "stray`<i>.json").write_text((folder / "rank1.json").read_text().replace('"distributedInfo"', '"other"'))
    document = (folder / "rank1.json").read_text()
    (folder / "rank1.json").write_text(document.replace("mesh_tp", evil.replace('"', '\\"').replace("\n", "\\n")))
    for name, text in report(tmp_path, folder).items():
        outside = re.sub(r"`[^`\n]*`", "", text)
        if name.endswith(".md"):
            assert "<script" not in outside and "<img" not in outside and "<b>" not in outside and "<i>" not in outside
            assert "\n# heading" not in text
            for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
                assert len({line.count(" | ") for line in block.splitlines() if not set(line) <= set("|- ")}) == 1
        else:
            ET.fromstring(text)


def test_damage_repaired_is_counted_and_left_out_files_are_named(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    document = (folder / "rank1.json").read_text()
    (folder / "rank1.json").write_text(document.replace('"name": "gemm"', '"name": "g\\emm"', 2))
    (folder / "rank2.json.tmp").write_text("{")
    repaired = section(report(tmp_path, folder)["run.md"], "What was repaired or left out")
    assert ["`bad_escape`", "1", "2"] in [cells[:3] for cells in rows(repaired)]
    assert "rank2.json.tmp" in repaired and "unfinished" in repaired


def test_our_own_run_brings_memory_and_throughput(tmp_path: Path) -> None:
    from selection_runs import Fake, write

    ((run, attribution),) = write(tmp_path, [Fake("ddp")]).values()
    out = tmp_path / "reports"
    render_run("own", attribution, run, out)
    limits = section((out / "own.md").read_text(encoding="utf-8"), "What the traces do not say")
    assert "MB on the fullest rank, from the run's own record" in limits
    assert "tokens/s, from the run's own record" in limits


def test_comparison_judges_only_what_the_steps_can_carry(tmp_path: Path) -> None:
    found = {}
    for name, arguments in {
        "base": {}, "slow": {"longer": 300.0}, "same": {"steps": 5}, "short": {"steps": 1, "longer": 300.0},
    }.items():  # fmt: skip
        source = job(tmp_path / name, **arguments)  # type: ignore[arg-type]
        found[name] = (name, tables(source, tmp_path / "data" / name), source)
    runs = {name: read_imported(*given) for name, given in found.items()}
    verdicts = {
        name: change and change.verdict
        for name, run in runs.items()
        for change in [step_quantity(run, runs["base"]).change]
    }
    assert verdicts == {
        "base": None, "slow": Verdict.WORSE, "same": Verdict.WITHIN_NOISE, "short": Verdict.NOT_JUDGED,
    }  # fmt: skip
    assert step_quantity(runs["base"], runs["slow"]).change.verdict is Verdict.BETTER  # type: ignore[union-attr]
    transfer = share_quantities(runs["slow"], runs["base"])["transfer"]
    assert (
        transfer.change is not None and transfer.change.verdict is Verdict.BETTER
    )  # the same transfer of a longer step
    render_comparison(list(found.values()), tmp_path / "out")
    english = (tmp_path / "out" / "comparison.md").read_text(encoding="utf-8")
    assert "**`base` has the shortest step" in english or "**`same` has the shortest step" in english
    table = rows(section(english, "How long a step takes"))
    assert table[0][3:5] == ["Complete steps", "Step of the slowest rank, µs"]
    assert [cells[3] for cells in table[1:]] == ["4", "4", "5", "1"]
    assert [cells[0] for cells in table[1:]] == [
        "[`base`](base.md) (compared with)", "[`slow`](slow.md)", "[`same`](same.md)", "[`short`](short.md)",
    ]  # fmt: skip
    assert "worse)" in table[2][4] and "within noise)" in table[3][4] and "not judged)" in table[4][4]
    assert table[1][-2:] == ["the traces do not say"] * 2
    assert "a step of `slow` is" in english and "the part that grew most is compute, by 300 µs" in english
    # Everything but the table of steps is a mean over ranks, and the slowest rank is named beside it.
    time = rows(section(english, "Where the time goes"))
    shares, parts = time[:5], time[5:]
    assert shares[0] == ["Run", *(f"{name}, % of step" for name in ("Communication", "Transfer", "Stall", "Bubble")),
                         "Overlap, % of communication"]  # fmt: skip
    assert (parts[0][1], parts[0][-1]) == ("Step, mean over ranks, µs", "Slowest rank's step, µs")
    # Both ranks end the step together; only their shares differ.
    first = dict(zip(parts[0], parts[1], strict=True))
    whole = float(first["Step, mean over ranks, µs"].replace(",", ""))
    assert first["Slowest rank's step, µs"] == f"{whole:,.0f} (rank 0)"
    assert float(shares[1][1]) == round(100 * float(first["all-reduce"]) / whole, 1)
    ET.fromstring((tmp_path / "out" / "figures" / "comparison.svg").read_text(encoding="utf-8"))
    with pytest.raises(ResultError, match="at least two"):
        render_comparison([found["base"]], tmp_path / "out")


def test_stragglers_are_ranked_by_the_waiting_they_cause(tmp_path: Path) -> None:
    result = attribute_paths([job(tmp_path / "job", late=50.0, steps=2)])
    assert [(item.rank, item.last, item.caused_ns) for item in over_steps(result)] == [(1, 2, 100_000), (0, 0, 0)]


def test_ranks_without_a_common_step_are_one_clear_error(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", steps=2)
    path = folder / "rank1.json"
    path.write_text(re.sub(r"ProfilerStep#(\d)", r"ProfilerStep#9\1", path.read_text()))
    attributed = tables(folder, tmp_path / "data")
    with pytest.raises(ResultError, match=r"no step in common .*rank 0: steps 0 to 1; rank 1: steps 90 to 91"):
        render_run("run", attributed, folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_workloads_the_summary_says_so(tmp_path: Path) -> None:
    render([], [], tmp_path, imported=["one", "two"])
    lines = (tmp_path / "summary.md").read_text(encoding="utf-8").splitlines()
    assert lines[2].startswith("The configuration names no workloads, only imported runs")
    assert "- `one`: [the attribution of its traces](imported/one.md)" in lines
    assert "(imported/one.zh.md)" in (tmp_path / "summary.zh.md").read_text(encoding="utf-8")
    assert (tmp_path / "evidence.md").is_file() and (tmp_path / "figures").is_dir()
    with pytest.raises(ResultError):
        render([], [], tmp_path)


def test_messages_are_posted_and_small_waits_not_claimed(tmp_path: Path) -> None:
    """Two stages pass a message each way; an all-reduce's ends scatter by 3 µs, so its wait of 1 µs is not claimed."""
    for rank in (0, 1):
        trace = HandMade(rank, 2, "nccl")
        for number in range(3):
            begin = 1000 * number
            trace.step(number, begin, begin + 1000)
            trace.kernel("gemm", begin, begin + 500, correlation=10 * number + 1, launch=begin)
            args = {"Collective name": "recv" if rank else "send", "Process Group Name": "0"}
            args |= {"Src Rank": 0} if rank else {"Dst Rank": 1}
            posted = begin + (700 if rank else 600)
            trace.kernel("ncclDevKernel_SendRecv", posted, begin + 800, 20, correlation=10 * number + 2,
                         launch=begin + 1, **args)  # fmt: skip
            end = begin + 950 + (3 * (number - 1) if rank else 0)
            trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin + 900 + rank, end, 20,
                         correlation=10 * number + 3, launch=begin + 2,
                         **{"Collective name": "allreduce", "Process Group Name": "0"})  # fmt: skip
        (tmp_path / "job").mkdir(exist_ok=True)
        trace.write(tmp_path / "job" / f"rank{rank}.json")
    files = report(tmp_path, tmp_path / "job")
    english = files["run.md"]
    kinds = rows(section(english, "Communication by kind and axis"))
    by_kind = {cells[0]: dict(zip(kinds[0], cells, strict=True)) for cells in kinds[1:]}
    assert by_kind["all-reduce"]["Waiting, µs"] == "< 3.00"
    header, *found = rows(section(english, "Waiting against transferring"))
    assert header[1:3] == ["Last to arrive or to post", "Of collectives and messages"]
    assert [cells[:3] for cells in found] == [["1", "3", "6"], ["0", "0", "6"]]
    assert found[1][3] == "< 3.00"
    assert "In 3 of 6 no rank was last by more than the clocks can tell." in english
    assert "They agree within 3.00 µs" in section(english, "Clocks")
    assert "小于时钟分辨能力（3.00 µs）的等待写作 < 该值" in files["run.zh.md"]


def test_units_give_a_step_four_digits_and_other_times_three() -> None:
    shown = {
        ns: f"{unit_of(ns).fixed(ns)} {unit_of(ns).name}" for ns in (6e4, 8e5, 1.0992e6, 1.9901e7, 4.5966e8, 1.234e10)
    }
    assert list(shown.values()) == ["60.00 µs", "800.0 µs", "1,099 µs", "19.90 ms", "459.7 ms", "12.34 s"]
    unit = unit_of(1.9901e7)
    assert [str(unit.show(ns)) for ns in (0, 4e3, 43_900, 1.055e6, 3.5226e7, 1.2345e9)] == [
        "0", "0.0040", "0.0439", "1.05", "35.2", "1,234",
    ]  # fmt: skip
    assert (str(unit.told(3e3, 4000)), str(unit.told(5e3, 4000)), str(unit.told(0, None))) == (
        "< 0.0040",
        "0.0050",
        "0",
    )
    assert [str(span(ns)) for ns in (-3000, 0, 2_206_624, 5e9)] == [
        "\N{MINUS SIGN}3.00 µs",
        "0 µs",
        "2.21 ms",
        "5.00 s",
    ]


def test_remarks_on_host_time_are_in_the_language_of_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    trace = HandMade(0, 1).step(1, 0, 100).op("aten::mm", 0, 40).span("my | loop", 40, 90, tid=1)
    trace.write(folder / "rank0.json")
    files = report(tmp_path, folder)
    assert "host time 60 % of the step: 83 % of it inside `my ¦ loop`" in files["run.md"]
    assert "主机时间占一步的 60%：其中 83% 在 `my ¦ loop` 之内" in files["run.zh.md"]
    assert "host_other" not in files["run.md"] + files["run.zh.md"]


def test_rank_lists() -> None:
    assert rank_list([7, 0, 1, 2, 9, 10]) == "0–2, 7, 9–10"
    assert rank_list([]) == ""


def configured(**section: Any) -> ImportedRun:
    return load({**DEFAULTS, "imported": {"run": section}}).imported["run"]


def test_configuration(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    run = configured(path=str(folder), ranks={"rank0.json": 5}, salvage=True)
    assert run.ranks == {folder / "rank0.json": 5} and run.salvage and run.second_opinion
    assert configured(path=str(folder / "rank1.json")).files() == [str(folder / "rank1.json")]


def test_every_file_that_is_read_is_an_input(tmp_path: Path) -> None:
    folder = job(tmp_path / "job")
    shutil.copy(folder / "rank0.json", folder / "notes.txt")
    (folder / "rank7.json.gz.tmp").write_bytes(b"")
    (folder / "run.json").write_text("{}")
    found = load_files([folder])
    read = {str(timeline.path) for _, timeline in found.timelines} | {str(path) for path, _ in found.skipped}
    listed = configured(path=str(folder)).files()
    assert read <= set(listed)
    inner = job(tmp_path / "deep" / "iteration_10", steps=1)
    assert str(inner / "rank1.json") in configured(path=str(tmp_path / "deep")).files()
    assert str(folder / "notes.txt") not in listed and str(folder / "run.json") in listed


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({"path": "no/where"}, "imported.run.path: no such file or folder: no/where"),
        ({"path": "{empty}"}, "empty: no trace files (.json or .json.gz) there"),
        ({"path": "{job}", "ranks": {"rank9.json": 1}}, "imported.run.ranks: no file rank9.json in"),
        ({"path": "{job}", "ranks": {"../job/rank0.json.lnk": 1}}, "imported.run.ranks: no file"),
        ({"path": "{job}", "ranks": {"../outside.json": 1}}, "imported.run.ranks: no file ../outside.json"),
        ({"path": "{job}", "patterns": "none.toml"}, "imported.run.patterns: no such file: none.toml"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, section: dict[str, Any], expected: str) -> None:
    job(tmp_path / "job", steps=1)
    (tmp_path / "empty").mkdir()
    (tmp_path / "outside.json").write_text("{}")
    places = {"empty": tmp_path / "empty", "job": tmp_path / "job"}
    section["path"] = section["path"].format(**places)
    with pytest.raises(ConfigError) as caught:
        configured(**section)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_reserved_name_and_an_empty_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="taken by the comparison"):
        load({**DEFAULTS, "imported": {"comparison": {"path": str(tmp_path)}}})
    with pytest.raises(ConfigError, match="nothing to do"):
        load(DEFAULTS)
