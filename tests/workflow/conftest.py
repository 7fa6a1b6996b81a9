"""A whole workflow run on the tiny workload, done once; each test works on its own copy of it."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from filelock import FileLock

REPOSITORY = Path(__file__).resolve().parents[2]
PARTS = ("Snakefile", "environment.yml", "requirements.lock", "workflow", "profiles", "scripts", "src", "config")


@dataclass
class Project:
    """A copy of the repository's workflow, run in a folder of its own."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        return self.root / "work"

    def command(self, *arguments: str) -> list[str]:
        snakefile = str(self.root / "repo" / "Snakefile")
        return [
            *(sys.executable, "-m", "snakemake", "--snakefile", snakefile, "--directory", str(self.work)),
            *("--configfile", str(self.root / "config.yaml"), "--cores", "4", *arguments),
        ]

    def variables(self) -> dict[str, str]:
        # The copy of the package, not the installed one: tests edit it.
        return {**os.environ, "PYTHONPATH": str(self.root / "repo" / "src"), **self.environment}

    def snakemake(self, *arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), env=self.variables(), capture_output=True, text=True, timeout=timeout
        )

    def planned(self, *arguments: str) -> Counter[str]:
        """Rules and how often each would run for the report."""
        done = self.snakemake("--dry-run", "reports/summary.md", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        text = done.stdout + done.stderr
        if "Nothing to be done" in text:
            return Counter()
        table = text.rsplit("Job stats:", 1)[1].split("\n\n")[0].splitlines()
        rows = [line.split() for line in table if len(line.split()) == 2 and line.split()[1].isdigit()]
        return Counter({name: int(count) for name, count in rows if name != "total"})

    def reconfigure(self, **changes: object) -> None:
        path = self.root / "config.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}), encoding="utf-8")

    def copy_to(self, root: Path) -> "Project":
        shutil.copytree(self.root, root, symlinks=True, dirs_exist_ok=True)
        return Project(root, dict(self.environment))


def new_project(root: Path) -> Project:
    root.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        source = REPOSITORY / part
        if source.is_dir():
            shutil.copytree(source, root / "repo" / part, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            (root / "repo").mkdir(exist_ok=True)
            shutil.copy2(source, root / "repo" / part)
    shutil.copy2(REPOSITORY / "config" / "tiny.yaml", root / "config.yaml")
    (root / "work").mkdir()
    return Project(root)


@pytest.fixture
def fresh(tmp_path: Path) -> Project:
    """Nothing has run yet."""
    return new_project(tmp_path / "project")


@pytest.fixture(scope="session")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The report has been made once, for all processes of a test run. Not to be changed: use `finished`."""
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "first_run"
    with FileLock(root.with_suffix(".lock")):
        if not root.exists():
            making = root.with_suffix(".making")
            shutil.rmtree(making, ignore_errors=True)
            project = new_project(making)
            done = project.snakemake("reports/summary.md", timeout=280)
            assert done.returncode == 0, done.stdout + done.stderr
            making.rename(root)
    return Project(root)


@pytest.fixture
def finished(first_run: Project, tmp_path: Path) -> Project:
    """A copy of the finished run."""
    return first_run.copy_to(tmp_path / "project")
