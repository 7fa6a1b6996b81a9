"""The workflow on the tiny workload: real processes, real traces, real scheduler."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.workflow.conftest import Project

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DOWNSTREAM = {"attribute": 1, "check": 1, "decide": 1, "report": 1}


def run_of(project: Project, strategy: str) -> dict[str, object]:
    return json.loads((project.work / "traces" / "tiny" / strategy / "run.json").read_text(encoding="utf-8"))


def summary(project: Project, language: str = "") -> str:
    return (project.work / "reports" / f"summary{language}.md").read_text(encoding="utf-8")


def kill_one_rank(project: Project, strategy: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Start the workflow, kill rank 1 of `strategy` in the middle of its work, and wait for the end.

    Returns the finished process and the seconds it took from the kill on.
    """
    log = project.work / "logs" / "tiny" / f"{strategy}.measure.log"
    log.unlink(missing_ok=True)
    started = subprocess.Popen(
        project.command(*arguments), env=project.variables(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        os.kill(worker_of(started.pid, log, rank=1), signal.SIGKILL)
        killed_at = time.monotonic()
        out, err = started.communicate(timeout=200)
    finally:
        started.kill()
    done = subprocess.CompletedProcess(started.args, started.returncode, out, err)
    return done, time.monotonic() - killed_at


def worker_of(parent: int, log: Path, rank: int) -> int:
    """Process id of one rank, as soon as the log shows that the job is past its first phase."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if log.exists() and "losses:" in log.read_text(encoding="utf-8", errors="replace"):
            for process in psutil.Process(parent).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "shardscope.measure.worker" in process.cmdline() and process.environ()["RANK"] == str(rank):
                        return process.pid
        time.sleep(0.02)
    raise AssertionError(f"rank {rank} never got to work: {log}")


def test_one_command_makes_everything_and_then_nothing(finished: Project) -> None:
    for name in ("summary.md", "summary.zh.md", "evidence.md"):
        assert (finished.work / "reports" / name).stat().st_size > 1000, name
    for strategy in ("single", "ddp", "zero3", "pipeline_1f1b"):
        run = run_of(finished, strategy)
        assert run["status"] == "ok", run["reason"]
        for trace in run["traces"]:
            assert (finished.work / "traces" / "tiny" / strategy / trace["file"]).stat().st_size == trace["bytes"]
    assert finished.planned() == {}


def test_summaries_are_short(finished: Project) -> None:
    assert len(summary(finished).splitlines()) <= 200
    assert len(summary(finished, ".zh").splitlines()) <= 200


def test_snakemakes_own_report_shows_the_documents_and_the_drawings(finished: Project) -> None:
    made = finished.snakemake("--report", "shown.html")
    assert made.returncode == 0, made.stderr
    page = (finished.work / "shown.html").read_text(encoding="utf-8")
    for name in ("summary.md", "summary.zh.md", "summary.html", "evidence.md", "step-time-tiny.svg"):
        assert name in page, name


def test_forcing_one_strategy_reruns_only_what_depends_on_it(finished: Project) -> None:
    before = {name: run_of(finished, name)["finished_at"] for name in ("single", "ddp", "zero3", "pipeline_1f1b")}
    done = finished.snakemake("--force", "traces/tiny/zero3")
    assert done.returncode == 0, done.stdout + done.stderr
    after = {name: run_of(finished, name)["finished_at"] for name in before}
    assert {name for name in before if before[name] != after[name]} == {"zero3"}
    assert finished.planned() == DOWNSTREAM


def test_editing_a_template_redoes_only_the_report(finished: Project) -> None:
    template = next((finished.root / "repo" / "src" / "shardscope" / "report" / "templates").glob("summary*"))
    template.write_text(template.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert finished.planned() == {"report": 1}


def test_adding_a_strategy_measures_only_that_one(finished: Project) -> None:
    finished.reconfigure(strategies=["single", "ddp", "zero3", "pipeline_1f1b", "tensor"])
    assert finished.planned() == {**DOWNSTREAM, "measure": 1}


def test_a_toy_strategy_is_one_file_and_one_line(finished: Project) -> None:
    folder = finished.root / "repo" / "src" / "shardscope" / "strategies"
    (folder / "toy.py").write_text(
        "from shardscope.strategies.ddp import DDP\n"
        "class Toy(DDP):\n    name = 'toy'\n    display_name = 'Toy'\n"
        "STRATEGIES = (Toy(),)\n",
        encoding="utf-8",
    )
    finished.reconfigure(strategies=["single", "ddp", "zero3", "pipeline_1f1b", "toy"])
    assert finished.planned() == {**DOWNSTREAM, "measure": 1}
    done = finished.snakemake("reports/summary.md")
    assert done.returncode == 0, done.stdout + done.stderr
    assert run_of(finished, "toy")["status"] == "ok"
    assert "| `toy` |" in summary(finished)


def test_changing_a_constraint_measures_nothing(finished: Project) -> None:
    finished.reconfigure(constraints={"memory_cap_mb": 1})
    assert finished.planned() == {"decide": 1, "report": 1}


def test_a_killed_rank_is_recorded_reported_and_retried(finished: Project) -> None:
    folder = finished.work / "traces" / "tiny" / "zero3"
    shutil.rmtree(folder)
    shutil.rmtree(finished.work / "reports")
    done, seconds = kill_one_rank(finished, "zero3", "reports/summary.md")
    assert done.returncode == 0, done.stdout + done.stderr
    assert seconds < 60
    run = run_of(finished, "zero3")
    assert run["status"] == "failed"
    assert run["failure"]["rank"] == 1
    assert run["failure"]["signal"] == "SIGKILL"
    assert run["failure"]["log_tail"]
    assert sorted(path.name for path in folder.parent.iterdir()) == [
        *("ddp", "pipeline_1f1b", "reference.npz", "single", "zero3"),
    ]
    assert "1 of 4" in "\n".join(summary(finished).splitlines()[:12])
    assert finished.planned() == {**DOWNSTREAM, "measure": 1}
    assert finished.snakemake("reports/summary.md").returncode == 0
    assert run_of(finished, "zero3")["status"] == "ok"
    assert finished.planned() == {}


def test_a_failed_rerun_keeps_the_earlier_result(finished: Project) -> None:
    before = run_of(finished, "zero3")
    done, _ = kill_one_rank(finished, "zero3", "--force", "traces/tiny/zero3")
    assert done.returncode == 0, done.stdout + done.stderr
    after = run_of(finished, "zero3")
    assert after["status"] == "ok"
    assert after["timing"] == before["timing"]
    assert after["last_failure"]["rank"] == 1
    for trace in after["traces"]:
        assert (finished.work / "traces" / "tiny" / "zero3" / trace["file"]).is_file()
    assert finished.planned() == {**DOWNSTREAM, "measure": 1}


def test_an_interrupted_run_keeps_the_earlier_result_and_the_same_command_goes_on(finished: Project) -> None:
    traces = finished.work / "traces" / "tiny"
    before, names = (traces / "zero3" / "run.json").read_bytes(), sorted(path.name for path in traces.iterdir())
    log = finished.work / "logs" / "tiny" / "zero3.measure.log"
    log.unlink()
    with subprocess.Popen(
        finished.command("--force", "traces/tiny/zero3"),
        env=finished.variables(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # Ctrl-C as in a terminal, also where the tests themselves run in the background and ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as started:
        processes = [psutil.Process(worker_of(started.pid, log, rank=1))]
        processes += psutil.Process(started.pid).children(recursive=True)
        os.killpg(started.pid, signal.SIGINT)
        out, _ = started.communicate(timeout=60)
    assert started.returncode != 0
    assert "stopped: interrupted" in out and "Traceback" not in out
    assert psutil.wait_procs(processes, timeout=20)[1] == []
    assert (traces / "zero3" / "run.json").read_bytes() == before
    assert sorted(path.name for path in traces.iterdir()) == names
    done = finished.snakemake("traces/tiny/zero3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert run_of(finished, "zero3")["status"] == "ok"
    assert (traces / "zero3" / "run.json").read_bytes() != before


def test_a_result_that_does_not_add_up_stops_the_report(finished: Project) -> None:
    path = finished.work / "traces" / "tiny" / "zero3" / "rank1.json.gz"
    path.unlink()
    before = summary(finished)
    # Forced: Snakemake does not look into finished folders, and a missing mark alone is no reason to it.
    done = finished.snakemake("--forcerun", "check", "--", "reports/summary.md")
    assert done.returncode != 0
    assert "rank1.json.gz" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (finished.work / "reports" / "summary.md").exists() or summary(finished) == before


def test_what_does_not_divide_is_not_applicable_and_the_rest_goes_on(fresh: Project) -> None:
    fresh.reconfigure(strategies=["ddp", "tensor"], measure={**TINY_MEASURE, "world_size": 2}, workloads={"tiny": ODD})
    done = fresh.snakemake("reports/summary.md")
    assert done.returncode == 0, done.stdout + done.stderr
    assert run_of(fresh, "ddp")["status"] == "ok"
    refused = run_of(fresh, "tensor")
    assert refused["status"] == "not_applicable"
    assert "heads" in str(refused["reason"])
    assert str(refused["reason"])[:20] in summary(fresh).replace("\\", "")


def test_a_baseline_that_does_not_fit_still_gives_a_report(fresh: Project) -> None:
    fresh.environment["SHARDSCOPE_SIMULATE_OOM"] = "ddp"
    fresh.reconfigure(strategies=["ddp", "zero3", "pipeline_1f1b"])
    done = fresh.snakemake("reports/summary.md")
    assert done.returncode == 0, done.stdout + done.stderr
    assert run_of(fresh, "ddp")["status"] == "out_of_memory"
    assert run_of(fresh, "zero3")["timing"]["mode"] == "alone"
    assert "zero3" in summary(fresh)


# Three heads do not divide over two ranks; everything else does.
ODD = {"layers": 2, "hidden": 36, "heads": 3, "sequence_length": 16, "global_batch": 8, "micro_batches": 2}
TINY_MEASURE = {"triples": 3, "warmup_steps": 1, "requests": 3, "loss_steps": 8, "profiled_steps": 2}
