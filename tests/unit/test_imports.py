"""The import rules: data flows one way through the stages, and a laptop without torch analyses traces."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "shardscope"
# A module may import from its own stage and those before it.
STAGES = ("workload", "strategies", "measure", "trace", "attribution", "view", "selection", "report", "config", "cli")
BASE = ("errors", "vocabulary", "template", "bridge", "progress", "beside", "records")
# Record types that every stage may name, whatever wrote them.
CONTRACTS = ("measure.record", "measure.settings")
TORCH_FREE = ("trace", "attribution", "view", "selection", "report", "config", "cli", "provenance", *BASE)

MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, top_level_only: bool = False) -> Iterator[str]:
    """Names of imported modules; what only type checkers see does not run and is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not _never_runs_at_import(node, top_level_only):
            yield from imports(node, top_level_only)


def _never_runs_at_import(node: ast.AST, functions_too: bool) -> bool:
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    return functions_too and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def violations(name: str, source: str) -> list[str]:
    """What is wrong with the imports of module `name` (dotted, without the package)."""
    tree = ast.parse(source)
    stage = name.split(".")[0]
    found = []
    every = set(imports(tree))
    for imported in every:
        if imported.split(".")[0] == "snakemake":
            found.append(f"{name} imports snakemake")
        if not imported.startswith("shardscope."):
            continue
        target = imported.removeprefix("shardscope.")
        other = target.split(".")[0]
        if any(target == contract or target.startswith(f"{contract}.") for contract in CONTRACTS):
            continue
        if stage in STAGES and other in STAGES and STAGES.index(other) > STAGES.index(stage):
            found.append(f"{name} imports the later stage {other}")
        if stage in ("selection", "report") and other in ("trace", "view"):
            found.append(f"{name} opens traces")
    uses_torch = set(imports(tree, top_level_only=True)) if stage == "strategies" else every
    if stage in (*TORCH_FREE, "strategies") and any(used.split(".")[0] == "torch" for used in uses_torch):
        found.append(f"{name} imports torch")
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_module_keeps_the_import_rules(path: Path) -> None:
    assert violations(name_of(path), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("trace.reader", "from shardscope.report import api", "imports the later stage report"),
        ("trace.reader", "def f():\n    import torch.distributed", "imports torch"),
        ("strategies.ddp", "import torch", "imports torch"),
        ("selection.api", "from shardscope.trace import reader", "opens traces"),
        ("report.api", "from shardscope.view import merge", "opens traces"),
        ("cli", "from snakemake.utils import validate", "imports snakemake"),
    ],
)
def test_the_rules_see_violations(name: str, source: str, expected: str) -> None:
    assert any(expected in found for found in violations(name, source))


def test_strategies_may_import_torch_inside_functions() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\ndef build():\n    import torch\n"
    assert violations("strategies.ddp", source) == []


def test_analysis_starts_without_torch_or_snakemake() -> None:
    modules = ("shardscope", "shardscope.cli", "shardscope.config", "shardscope.report.api", "shardscope.provenance")
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(sorted({'torch', 'snakemake', 'hta'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_files_and_functions_stay_small() -> None:
    too_long = []
    for path in MODULES:
        source = path.read_text(encoding="utf-8")
        if source.count("\n") > 300:
            too_long.append(f"{name_of(path)}: {source.count(chr(10))} lines")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno and node.end_lineno - node.lineno >= 60:
                too_long.append(f"{name_of(path)}.{node.name}: {node.end_lineno - node.lineno + 1} lines")
    assert too_long == []
