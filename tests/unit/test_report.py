"""The report on made-up benchmarks: true of its numbers, the same in both languages, safe, and whole or not at all."""

import re
import xml.etree.ElementTree as ET  # the SVG is our own
from collections import Counter
from pathlib import Path

import jinja2
import jinja2.meta
import msgspec
import pytest
from selection_runs import ENVIRONMENT, SPEC, Fake, nine, write

from shardscope.errors import ResultError
from shardscope.measure.record import Failure
from shardscope.report.api import render
from shardscope.report.markdown import FILTERS, code, round_parts, text
from shardscope.report.sentences import Language, Sentence, catalogue
from shardscope.report.summary import MOST_LINES
from shardscope.selection.api import decide, save
from shardscope.selection.terms import Constraints
from shardscope.vocabulary import Axis, Kind, Status

LIMITS = Constraints(memory_cap_mb=60, max_communication_fraction=0.25)
REDUCE = {Kind.ALL_REDUCE: (Axis.DATA, 6.0, 3.0, 4.0)}


def _report(tmp_path: Path, *workloads: list[Fake], limits: Constraints = LIMITS) -> dict[str, str]:
    """Render; returns file name → text."""
    decisions, folders = [], []
    for fakes in workloads:
        found = write(tmp_path, fakes)
        name = fakes[0].spec.name
        path = tmp_path / "data" / name / "decision.json"
        save(decide(name, found, limits), path)
        decisions.append(path)
        folders += [attribution for _, attribution in found.values()]
    out = tmp_path / "reports"
    render(decisions, folders, out)
    return {path.name: path.read_text(encoding="utf-8") for path in out.rglob("*") if path.is_file()}


def _failures() -> list[Fake]:
    killed = Failure(rank=1, exit_code=None, signal="SIGKILL", log_tail=("line one", "``` <b>two</b>"))
    return [
        Fake("single", "single process", (), step=180, peak=70, all_cores=90),
        Fake("ddp", "DDP", parts=REDUCE, peak=55),
        Fake("zero1", status=Status.FAILED, reason="rank 1 was killed by SIGKILL during timing", failure=killed),
        Fake("zero2", status=Status.OUT_OF_MEMORY, reason="rank 0 ran out of memory"),
        Fake("tensor", status=Status.NOT_APPLICABLE, reason="2 ranks do not divide 3 heads"),
        Fake("zero3", gradient_error=0.25, parts=REDUCE),
        Fake("pipeline_1f1b", "pipeline (1F1B)", ("layers",), step=130, bubble=30, compute=85, request=4, peak=50),
    ]


def _scenarios() -> dict[str, tuple[list[Fake], Constraints]]:
    crowded = msgspec.structs.replace(ENVIRONMENT, oversubscribed=True)
    alone = [Fake("single", "single process", (), step=180, mode="alone"),
             Fake("ddp", status=Status.OUT_OF_MEMORY, reason="rank 0 ran out of memory"),
             Fake("zero2", step=118, mode="alone", peak=58, parts=REDUCE),
             Fake("zero3", step=140, mode="alone", peak=44)]  # fmt: skip
    everything = Constraints(
        memory_cap_mb=50, min_throughput_tokens_per_s=9000, max_step_time_ms=105, max_request_latency_ms=4.5,
        max_communication_fraction=0.2,
    )  # fmt: skip
    slow_learner = [Fake("ddp", losses=(5.0,) * 16), Fake("zero1", losses=(5.0,) * 15 + (1.7976931348623157e308,))]
    return {
        "nine": (nine(), LIMITS),
        "failures": (_failures(), Constraints()),
        "noisy": ([Fake("ddp", noise=0.5), Fake("zero1", peak=50, noise=0.5)], Constraints(max_step_time_ms=1.0)),
        "one noisy": ([Fake("ddp"), Fake("zero1", peak=50, step=110), Fake("zero2", noise=0.6)], Constraints()),
        "crowded": ([Fake("ddp", environment=crowded), Fake("zero1", environment=crowded, peak=50)], LIMITS),
        "alone": (alone, Constraints()),
        "nothing passes": (nine(), everything),
        "no convergence": (slow_learner, Constraints()),
        "tie": ([Fake("ddp"), Fake("zero1", step=100.02, peak=50, request=6)], Constraints()),
        "offline": ([Fake("ddp"), Fake("zero1", step=80, request=7, peak=63.9)], Constraints()),
        "nothing ran": ([Fake("ddp", status=Status.FAILED, reason="boom")], Constraints(require_convergence=False)),
    }


SCENARIOS = _scenarios()


def _numbers(document: str) -> Counter[str]:
    """All numbers outside code, links and the names of strategies, signs normalised."""
    document = re.sub(r"zero\d|ZeRO-\d|FSDP2|1F1B", " ", document)
    bare = re.sub(r"`[^`]*`|\]\([^)]*\)|^ *#.*$", " ", document, flags=re.MULTILINE)
    bare = bare.replace("1/", "").replace(",", "")
    return Counter(re.findall(r"[−-]?\d+(?:\.\d+)?(?:e[+-]\d+)?", bare))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_both_languages_say_the_same(tmp_path: Path, scenario: str) -> None:
    fakes, limits = SCENARIOS[scenario]
    files = _report(tmp_path, fakes, limits=limits)
    english, chinese = files["summary.md"], files["summary.zh.md"]
    assert len(english.splitlines()) <= MOST_LINES and len(chinese.splitlines()) <= MOST_LINES
    assert english.count("\n#") == chinese.count("\n#")
    for one, two in zip(re.split(r"^#+ ", english, flags=re.M), re.split(r"^#+ ", chinese, flags=re.M), strict=True):
        mine, theirs = _numbers(one), _numbers(two)
        # A Chinese sentence may repeat a percent sign, an English one writes "6.0 times slower" for "1/6.0".
        assert set(mine) == set(theirs), one
        # Code spans (names, commands, reasons) are literally the same.
        assert Counter(re.findall(r"`[^`\n]+`", one)) == Counter(re.findall(r"`[^`\n]+`", two)), one


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_of_the_templates_is_left(tmp_path: Path, scenario: str) -> None:
    fakes, limits = SCENARIOS[scenario]
    for name, document in _report(tmp_path, fakes, limits=limits).items():
        if not name.endswith(".md"):
            continue
        assert not re.search(r"\{[{%]|None|nan\b|\bundefined|Sentence\(|&#39;", document), name
        assert "\n\n\n" not in document and document.endswith("\n") and not document.endswith("\n\n")
        assert not re.search(r" [,.;]|\.\.|;\.|:\.| \n|\( | \)", re.sub(r"`[^`]*`", "x", document)), name
        for block in re.findall(r"(?:^\|.*\n)+", document, flags=re.M):
            widths = {line.count(" | ") for line in block.splitlines() if not set(line) <= set("|- ")}
            assert len(widths) == 1, block


def test_catalogues_have_the_same_keys_and_fields() -> None:
    english, chinese = catalogue("en"), catalogue("zh")
    assert set(english) == set(chinese)
    environment = Language("en").environment
    for key in english:
        fields = [jinja2.meta.find_undeclared_variables(environment.parse(found[key])) for found in (english, chinese)]
        assert fields[0] - {"gap"} == fields[1] - {"gap"}, key


def test_the_answer(tmp_path: Path) -> None:
    summary = _report(tmp_path, nine())["summary.md"]
    assert "**Recommended: `zero1`**, ZeRO-1 (torch ZeroRedundancyOptimizer). It is the fastest of the 4" in summary
    assert "`ddp` is 6." in summary or "`ddp` is 5." in summary
    assert "fails the memory cap (64.0 MB against 60 MB)" in summary
    assert "snakemake --cores 4 --force traces/gpt3m/zero1 && snakemake --cores 4 reports/summary.md\n" in summary
    order = [summary.index(f"### {n}. ") for n in range(1, 7)]
    assert order == sorted(order)
    assert "cap ≥ 64.0 MB: `ddp`" in summary and "52.0–64.0 MB: `zero1`" in summary
    assert "The memory it saves is paid for mainly with stall; the part that grew most is bubble" in summary


def test_what_would_change_the_answer_names_ties_and_predictions(tmp_path: Path) -> None:
    fakes, limits = SCENARIOS["tie"]
    summary = _report(tmp_path / "tie", fakes, limits=limits)["summary.md"]
    assert "- Times with less noise: `ddp` is tied with it now." in summary and "*Predicted:*" not in summary
    slow = Fake("zero1", step=150, peak=50, parts=REDUCE)  # its compute alone takes longer than the other's step
    summary = _report(tmp_path / "never", [Fake("ddp"), slow], limits=Constraints())["summary.md"]
    assert "no bandwidth from 1/64 to 64 times today's" in summary and "puts `zero1` in its place." in summary
    # 60 of 150 ms are transfer: at (150 - 100) less it draws level, at 6 times the bandwidth.
    slow = Fake("zero1", step=150, peak=50, compute=80, parts={Kind.ALL_REDUCE: (Axis.DATA, 60.0, 0.0, 0.0)})
    summary = _report(tmp_path / "turns", [Fake("ddp"), slow], limits=Constraints())["summary.md"]
    assert re.search(r"\*Predicted:\* transfers (5\.\d|6\.\d) times as fast: `zero1` overtakes it\.", summary)
    # Beyond a limit of 25 % it must also pass: T/f = 0.25 (90 + T/f), f = 2, so drawing level at 6 still decides.
    limited = Constraints(max_communication_fraction=0.25)
    summary = _report(tmp_path / "limited", [Fake("ddp"), slow], limits=limited)["summary.md"]
    assert re.search(r"\*Predicted:\* transfers (5\.\d|6\.\d) times as fast: `zero1` overtakes it\.", summary)


def test_a_state_that_is_smaller_counts_where_the_peak_cannot_be_told(tmp_path: Path) -> None:
    fakes = [Fake("ddp", parts=REDUCE, peak=60), Fake("zero3", step=150, peak=50, residue=12.0, parts=REDUCE)]
    files = _report(tmp_path, fakes, limits=Constraints())
    assert (
        "the state it holds (parameters, gradients, optimizer) is 25.0 MB per rank, 16.7 % less" in files["summary.md"]
    )
    assert "为 25.0 MB，比 `ddp` 少 16.7%" in files["summary.zh.md"]
    told = [Fake("ddp", parts=REDUCE, peak=60), Fake("zero3", step=150, peak=50, parts=REDUCE)]
    assert "the state it holds" not in _report(tmp_path / "told", told, limits=Constraints())["summary.md"]


def test_a_gpu_is_named(tmp_path: Path) -> None:
    gpu = msgspec.structs.replace(ENVIRONMENT, device="cuda", device_names=("NVIDIA <b>H100</b>",), backend="nccl")
    files = _report(tmp_path, [Fake("ddp", parts=REDUCE, environment=gpu)])
    for name in ("summary.md", "summary.zh.md"):
        assert "NVIDIA &lt;b&gt;H100&lt;/b&gt;" in files[name], name


def test_a_failure_by_less_than_the_error_says_so(tmp_path: Path) -> None:
    fakes = [Fake("ddp", parts=REDUCE, peak=50), Fake("zero1", parts=REDUCE, peak=60.1, residue=0.2)]
    files = _report(tmp_path, fakes, limits=Constraints(memory_cap_mb=60))
    assert "**fails by 0.2 %**, less than its error" in files["summary.md"]
    assert "**未通过，超出 0.2%**（小于误差）" in files["summary.zh.md"]
    fakes[1].peak = 61
    assert (
        "less than its error"
        not in _report(tmp_path / "more", fakes, limits=Constraints(memory_cap_mb=60))["summary.md"]
    )


def test_waits_below_the_residual_and_unjudged_requests_are_named(tmp_path: Path) -> None:
    parts = {Kind.ALL_REDUCE: (Axis.DATA, 6.0, 0.01, 0.0)}
    shaky = Fake("zero1", step=90, peak=50, noise=0.02, parts=parts, clock_residual_ns=20_000)
    restless = Fake("zero2", step=90, peak=50, noise=0.2, parts=REDUCE)
    summary = _report(tmp_path, [Fake("ddp", parts=REDUCE), shaky, restless], limits=Constraints())["summary.md"]
    assert "| `zero1` | all-reduce (data axis) 6.00 | all-reduce (data axis) < 0.02 | – |" in summary
    assert "Request latency is not judged where" in summary and "`zero2` (±" in summary
    assert "is not judged (the baseline's own requests differ too much)" in summary


def test_one_process_with_all_cores_has_its_own_row(tmp_path: Path) -> None:
    single = Fake("single", "single process", (), step=180, peak=70, all_cores=99)
    files = _report(tmp_path, [single, Fake("ddp", peak=55, parts=REDUCE)], limits=Constraints(memory_cap_mb=60))
    assert "`single` (reference, 1 thread)" in files["summary.md"]
    assert re.search(r"\| one process with 2 threads \| 70\.0 \| [\d,]+ \| \d+\.\d \| – ", files["summary.md"])
    assert "exceeds the cap of 60 MB: at this size parallelism gains memory per rank, not speed" in files["summary.md"]
    assert "单进程，2 个线程" in files["summary.zh.md"]


def test_notes_apply_only_where_the_data_says_so(tmp_path: Path) -> None:
    summary = _report(tmp_path, nine())["summary.md"]
    assert "1.5 times the bytes of `ddp`; DeepSpeed's and Megatron's ZeRO-1 send 1.0 times" in summary
    assert "gloo runs a reduce-scatter as an all-reduce" in summary and "FSDP2 issues its collectives" in summary
    nccl = msgspec.structs.replace(ENVIRONMENT, backend="nccl", device="cuda")
    fakes = [Fake("ddp", environment=nccl, parts=REDUCE), Fake("zero3", "ZeRO-3 (FSDP2)", environment=nccl)]
    summary = _report(tmp_path / "b", fakes)["summary.md"]
    assert "gloo" not in summary and "FSDP2 issues" not in summary and "DeepSpeed" not in summary
    assert "no evidence" not in summary
    crowded, limits = SCENARIOS["crowded"]
    summary = _report(tmp_path / "c", crowded, limits=limits)["summary.md"]
    assert "times are no evidence; memory, bytes and parity are" in summary


def test_report_opens_with_failures_and_rows_keep_reasons(tmp_path: Path) -> None:
    files = _report(tmp_path, _failures(), limits=Constraints())
    summary = files["summary.md"]
    assert summary.splitlines()[2].startswith("**1 of 7 strategies failed:** `zero1`.")
    assert files["summary.zh.md"].splitlines()[2].startswith("**7 个策略中有 1 个运行失败**：`zero1`")
    rows = {line.split("|")[1].strip(): line for line in summary.splitlines() if line.startswith("| `")}
    comparison = summary.split("### 3.")[1].split("### 4.")[0]
    assert "| `zero1` | failed: `rank 1 was killed by SIGKILL during timing` |" in comparison
    assert "| `zero2` | out of memory: `rank 0 ran out of memory` |" in comparison
    assert "| `tensor` | not applicable: `2 ranks do not divide 3 heads` |" in comparison
    assert "disqualified: gradient error 2.5e-01 at `blocks.0.attention.key.bias`" in comparison
    assert "`zero3`" in rows and "snakemake --cores 4 reports/summary.md\n" in summary
    # First of all in the answer: one process is faster.
    first = summary.split("### 1.")[1].split("\n\n")[1]
    assert first.startswith("**Parallelism does not pay at this size: one process with 2 threads is 11")
    assert "line one\n" in files["evidence.md"]


def test_a_kept_earlier_result_opens_the_report(tmp_path: Path) -> None:
    fakes = [Fake("ddp"), Fake("zero1", last_failure_reason="rank 0 was killed by SIGKILL")]
    folders = write(tmp_path, fakes)
    record = msgspec.json.decode((folders["zero1"][0] / "run.json").read_bytes())
    assert record["last_failure_reason"]
    summary = _report(tmp_path, fakes)["summary.md"]
    assert "**The last rerun of `zero1` failed** (`rank 0 was killed by SIGKILL`)" in summary.splitlines()[2]


def test_too_noisy_says_so(tmp_path: Path) -> None:
    fakes, limits = SCENARIOS["noisy"]
    summary = _report(tmp_path, fakes, limits=limits)["summary.md"]
    assert "**too noisy to rank by time.**" in summary and "**Recommended by memory alone: `zero1`**" in summary
    assert "faster" not in re.sub(r"\*predicted:\*[^;.]*", "", summary)


def test_offline_rather_than_online(tmp_path: Path) -> None:
    fakes, limits = SCENARIOS["offline"]
    assert "for offline training rather than online serving" in _report(tmp_path, fakes, limits=limits)["summary.md"]


def test_chinese_card_is_the_template_functions_output(tmp_path: Path) -> None:
    chinese = _report(tmp_path, nine())["summary.zh.md"]
    assert "策略：zero1\n\n| 指标 | 变化 | 判断 |\n| --- | --- | --- |\n| peak memory | 12.0 MB | 改善 |" in chinese
    assert re.search(
        r"\| communication \| -5\.0 ms \| 未改善 \|\n\n推荐结论：选用 zero1，并继续观察 Broadcast。\n", chinese
    )


HOSTILE = "a|b`c`\n# d <script>alert(1)</script> {{ 7*7 }} [x](javascript:y) ![z](u) **e** \u202eevil"


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    fakes = [
        Fake("ddp", HOSTILE, flags=(HOSTILE,), environment=msgspec.structs.replace(ENVIRONMENT, cpu=HOSTILE)),
        Fake("zero1", status=Status.FAILED, reason=HOSTILE, failure=Failure(
            rank=0, exit_code=1, signal=None, log_tail=("```\n# heading", HOSTILE))),
    ]  # fmt: skip
    files = _report(tmp_path, fakes, limits=Constraints())
    for name, document in files.items():
        if name.endswith(".md"):
            outside = re.sub(r"^```text\n.*?^```$", "", document, flags=re.M | re.S)
            outside = re.sub(r"`[^`\n]*`", "", outside)
            assert "<script" not in outside, name
            # The pages on named hardware show numbers of their own and none of these texts.
            assert name.startswith("node.") or ("{{ 7*7 }}" in document and "49" not in outside), name
            assert not re.search(r"(?<!\\)\]\((javascript:y|u)", outside), name
            assert "**e**" not in outside and "\u202e" not in document, name
            assert not re.search(r"^# (d|heading)", outside, flags=re.M), name


def test_a_foreign_text_does_not_push_the_report_off_the_page(tmp_path: Path) -> None:
    failure = Failure(rank=0, exit_code=1, signal=None, log_tail=("x" * 100_000,))
    files = _report(tmp_path, [Fake("ddp"), Fake("zero1", status=Status.FAILED, reason="y" * 100_000, failure=failure)])
    assert max(len(line) for line in files["evidence.md"].splitlines()) < 3000
    assert max(len(line) for line in files["summary.md"].splitlines()) < 3000
    assert "y" * 400 in files["summary.md"] and "x" * 400 in files["evidence.md"]


def test_without_a_strategy_the_reference_is_not_called_wrong(tmp_path: Path) -> None:
    ruled_out = Fake("ddp", status=Status.NOT_APPLICABLE, reason="needs at least 2 ranks")
    summary = _report(tmp_path / "one", [Fake("single", "single process", ()), ruled_out])["summary.md"]
    assert "none but the single-process reference ran to the end" in summary
    assert "No strategy but the single-process reference ran correctly" in summary
    summary = _report(tmp_path / "none", [ruled_out])["summary.md"]
    assert "none ran to the end" in summary and "No strategy ran correctly" in summary


@pytest.mark.parametrize("name", ["../../x", "a b", "x<y", "$(touch z)"])
def test_hostile_workload_names_leave_no_path(tmp_path: Path, name: str) -> None:
    folders = write(tmp_path, [Fake("ddp", parts=REDUCE)])
    decision = decide("gpt3m", folders, LIMITS)
    renamed = msgspec.structs.replace(decision, workload=msgspec.structs.replace(SPEC, name=name))
    save(renamed, tmp_path / "decision.json")
    attribution = tmp_path / "given" / "ddp"
    with pytest.raises(ResultError, match="was not given"):
        render([tmp_path / "decision.json"], [attribution], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_svg_is_deterministic_described_and_adds_up(tmp_path: Path) -> None:
    one, two = _report(tmp_path / "a", nine()), _report(tmp_path / "b", nine())
    svg = one["step-time-gpt3m.svg"]
    assert svg == two["step-time-gpt3m.svg"] and "<dc:date>" not in svg
    root = ET.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    title, description = root.find(f"{space}title"), root.find(f"{space}desc")
    assert title is not None and title.text == "Step time of gpt3m by strategy"
    assert description is not None and description.text is not None
    assert "zero1: 106.0 ms = compute 83.0, all-reduce 9.0, broadcast 5.0, host 9.0." in description.text
    header, *rows = [line.split(",") for line in one["step-time-gpt3m.csv"].splitlines()]
    assert header[:3] == ["strategy", "step_ms", "compute_ms"] and len(rows) == 9
    for row in rows:
        assert float(row[1]) == pytest.approx(sum(map(float, row[2:])), abs=1e-9)


def test_several_workloads_share_200_lines(tmp_path: Path) -> None:
    workloads = []
    for index in range(6):
        spec = msgspec.structs.replace(SPEC, name=f"w{index}")
        workloads.append([msgspec_copy(fake, spec) for fake in nine()])
    files = _report(tmp_path, *workloads)
    for name in ("summary.md", "summary.zh.md"):
        document = files[name]
        assert len(document.splitlines()) <= MOST_LINES
        assert all(f"`w{index}`" in document for index in range(6))
        assert document.index("`w0`") < document.index("`w1`")
        assert document.count("### 5.") == 1
    assert files["evidence.md"].count("### Details left out of the summary") == 5
    assert "step-time-w5.svg" in files


def msgspec_copy(fake: Fake, spec: object) -> Fake:
    """The same strategy on another workload."""
    return Fake(**{**vars(fake), "spec": spec})  # type: ignore[arg-type]


def test_twenty_strategies_still_fit(tmp_path: Path) -> None:
    fakes = [*nine(), *(Fake(f"extra{i}", step=150 + i, peak=70 + i, parts=REDUCE) for i in range(14))]
    files = _report(tmp_path, fakes)
    assert len(files["summary.md"].splitlines()) <= MOST_LINES
    assert len(files["summary.zh.md"].splitlines()) <= MOST_LINES


def test_whole_or_not_at_all(tmp_path: Path) -> None:
    before = _report(tmp_path, nine())
    attribution = tmp_path / "data" / "gpt3m" / "zero3" / "attribution.json"
    attribution.write_text("{")
    with pytest.raises(ResultError, match="attribution"):
        render(
            [tmp_path / "data" / "gpt3m" / "decision.json"],
            [path for path in (tmp_path / "data" / "gpt3m").iterdir() if path.is_dir()],
            tmp_path / "reports",
        )
    after = {p.name: p.read_text(encoding="utf-8") for p in (tmp_path / "reports").rglob("*") if p.is_file()}
    assert after == before


def test_old_figures_do_not_stay(tmp_path: Path) -> None:
    _report(tmp_path, nine())
    (tmp_path / "reports" / "figures" / "old.svg").write_text("x")
    (tmp_path / "reports" / "mine.txt").write_text("kept")
    assert "old.svg" not in _report(tmp_path, nine())
    assert sorted(path.name for path in (tmp_path / "reports").iterdir()) == [
        "evidence.md", "figures", "mine.txt", "node.md", "node.zh.md", "summary.html", "summary.md", "summary.zh.md",
    ]  # fmt: skip


def test_one_decision_per_workload(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="one decision per workload"):
        render([], [], tmp_path)
    _report(tmp_path, [Fake("ddp")])
    path = tmp_path / "data" / "gpt3m" / "decision.json"
    with pytest.raises(ResultError, match="one decision per workload"):
        render([path, path], [], tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("mb", 52_040_000, "52.0"), ("mb_up", 52_040_000, "52.1"), ("mb_up", 52_000_000, "52.0"),
        ("ms", 9_994_000, "9.99"), ("ms", 9_999_000, "10.0"), ("ms", 106_000_000, "106.0"),
        ("rate", 9658.3, "9,658"), ("pct", 0.0571, "5.7"), ("signed_pct", -0.0539, "−5.4"),
        ("signed_pct", -0.00000001, "0.00"), ("signed_pct", 0.0, "0.0"), ("size_pct", -0.2, "20.0"),
        ("factor", 1.378, "1.4"), ("factor", 0.0713, "0.071"), ("factor", 23.5, "24"), ("factor_up", 1.31, "1.4"),
        ("factor_up", 12.01, "13"), ("up", 30.01, "30.1"), ("down", 8655.9, "8,655"), ("number", 0.25, "0.25"),
        ("number", 60.0, "60"), ("number", 9000.0, "9,000"), ("scientific", 1.7976931348623157e308, "∞"),
    ],
)  # fmt: skip
def test_formats(name: str, value: float, shown: str) -> None:
    assert FILTERS[name](value) == shown


def test_a_value_never_prints_like_the_limit_it_misses() -> None:
    near = FILTERS["near"]
    assert near(60_040_000, 60.0, 1e6) == "60.04" and near(60_000_001, 60.0, 1e6) == "60.000001"
    assert near(60_000_000, 60.0, 1e6) == "60.0" and near(66_000_000, 60.0, 1e6) == "66.0"


def test_rounded_parts_add_up() -> None:
    total, parts = round_parts(100.04, [33.349, 33.349, 33.342])
    assert total == 100.0 and sum(round(10 * part) for part in parts) == 1000
    total, parts = round_parts(0.1, [0.06, 0.06, 0.0])
    assert total == 0.1 and sorted(parts) == [0.0, 0.0, 0.1]


def test_a_template_cannot_print_a_bare_float_or_nothing() -> None:
    language = Language("en")
    for value in (1.5, None):
        with pytest.raises(TypeError):
            language.environment.from_string("{{ x }}").render(x=value)
    with pytest.raises(jinja2.UndefinedError):
        language.environment.from_string("{{ y }}").render()
    with pytest.raises(KeyError):
        language.say(Sentence("no.such.key"))
    assert text("a_b *c*") == r"a_b \*c\*" and code("x`|y") == "`x'¦y`"
