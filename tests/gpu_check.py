"""`make gpu-check`: the workflow on the GPUs at hand, and whether its results have the structure of a CPU run.

Exit status 0: the same files, the same fields, the same kinds of communication, as often; 1: something differs, each
difference on a line; 3: there is no GPU, so nothing was checked, and that must not look like a pass.
"""

import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).resolve().parents[1]
PASSED, DIFFERS, NOTHING_CHECKED = 0, 1, 3
MOST_RANKS = 4  # what the tiny workload can be divided among
SHARDED = ("zero1", "zero2", "zero3", "pipeline_gpipe", "pipeline_1f1b", "tensor", "tensor_sequence")
# Only one kind of device can say these, or they are lists as long as the machine's.
EITHER = ("environment", "notes", "memory", "wire")


def gpus() -> tuple[int, str]:
    """How many GPUs torch can use, and torch's version."""
    import torch

    return (torch.cuda.device_count() if torch.cuda.is_available() else 0), torch.__version__


def main() -> int:
    """Run both and compare. Returns the exit status."""
    count, version = gpus()
    if count == 0:
        print(f"gpu-check: no GPU that torch {version} can use: nothing was checked (exit status {NOTHING_CHECKED})")
        return NOTHING_CHECKED
    ranks = max(size for size in (1, 2, MOST_RANKS) if size <= count)
    names = ["single", "ddp", *SHARDED] if ranks > 1 else ["single", "ddp"]
    print(f"gpu-check: {ranks} of {count} GPUs, torch {version}; then the same on the CPU")
    with tempfile.TemporaryDirectory(prefix="gpu-check.") as scratch:
        shown = os.environ.get("CUDA_VISIBLE_DEVICES")
        found = structure(run(Path(scratch) / "gpu", names, ranks, {}), names)
        device = {name: found[name].get("device") for name in names if found[name]["status"] == "ok"}
        expected = structure(run(Path(scratch) / "cpu", names, ranks, {"CUDA_VISIBLE_DEVICES": ""}), names)
    lines = [f"{name}: ran on {kind}, not on the GPUs ({shown})" for name, kind in device.items() if kind != "cuda"]
    lines += differences(found, expected)
    for line in lines:
        print(f"gpu-check: {line}")
    print(f"gpu-check: {f'{len(lines)} differences' if lines else f'{len(names)} strategies have the same structure'}")
    return DIFFERS if lines else PASSED


def run(folder: Path, names: list[str], ranks: int, variables: dict[str, str]) -> Path:
    """The whole workflow on the tiny workload, in `folder`. Raises CalledProcessError when it fails."""
    folder.mkdir(parents=True)
    raw = yaml.safe_load((REPOSITORY / "config" / "tiny.yaml").read_text(encoding="utf-8"))
    raw["strategies"] = names
    raw["measure"]["world_size"] = ranks
    (folder / "config.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile"), "--cores", "4"]
    command += ["--directory", str(folder), "--configfile", str(folder / "config.yaml"), "--", "reports/summary.md"]
    subprocess.run(command, env={**os.environ, **variables}, check=True)
    return folder


def structure(folder: Path, names: list[str], workload: str = "tiny") -> dict[str, dict[str, Any]]:
    """Strategy → status, device, files, fields that hold something, kinds of communication and how often each."""
    found = {}
    for name in names:
        traces, data = folder / "traces" / workload / name, folder / "reports" / "data" / workload / name
        record = json.loads((traces / "run.json").read_text(encoding="utf-8"))
        found[name] = {
            "status": record["status"],
            "device": (record.get("environment") or {}).get("device"),
            "files": sorted(path.name for place in (traces, data) for path in place.iterdir()),
            "fields": sorted(set(_fields(record, ""))),
            "calls": _calls(data),
            "ledger": _columns(data / "ledger.csv"),
        }
    return found


def differences(found: dict[str, dict[str, Any]], expected: dict[str, dict[str, Any]]) -> list[str]:
    """One line per strategy and thing that is not the same; the device is meant to differ."""
    lines = []
    for name in expected:
        for key in ("status", "files", "fields", "calls", "ledger"):
            one, two = found[name][key], expected[name][key]
            if one == two:
                continue
            if isinstance(one, str):
                lines.append(f"{name}: {key}: {one}, on the CPU {two}")
                continue
            more, less = sorted(map(str, _items(one) - _items(two))), sorted(map(str, _items(two) - _items(one)))
            lines.append(f"{name}: {key}: only here {', '.join(more) or '–'}; only on the CPU {', '.join(less) or '–'}")
    return lines


def _items(value: Any) -> set[Any]:
    return set(value.items()) if isinstance(value, dict) else set(value)


def _fields(value: Any, path: str) -> Iterator[str]:
    """Dotted names of all fields that hold something; lists are not gone into."""
    if isinstance(value, dict) and path.split(".")[0] not in (*EITHER, "communication", "workload"):
        for key, inner in value.items():
            yield from _fields(inner, f"{path}.{key}".lstrip("."))
    elif value not in (None, [], {}):
        yield path


def _calls(data: Path) -> dict[str, int]:
    """Kind and axis → calls of the summary step, all ranks together."""
    path = data / "attribution.json"
    if not path.is_file():
        return {}
    result = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, int] = {}
    for rank in result["ranks"]:
        for step in rank["steps"]:
            for call in step["calls"] if step["step"] == result["summary_step"] else []:
                key = f"{call['kind']} on {call['axis']}"
                found[key] = found.get(key, 0) + call["count"]
    return found


def _columns(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as stream:
        return next(csv.reader(stream), [])


if __name__ == "__main__":
    raise SystemExit(main())
