"""Every strategy with real processes, 2 and 4 ranks, one launch each: parity, state, communication against the plan.

Strategies broken on purpose must be seen: the parity error for wrong gradients, the plan for wrong communication.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from parity_worker import BROKEN, STEPS, TINY, broken, cases

from shardscope import strategies
from shardscope.measure.record import ExpectedCollective, Plan
from shardscope.vocabulary import Kind

WORKER = Path(__file__).with_name("parity_worker.py")
ELSEWHERE = {2: {"pipeline_zero3", "zero3_tensor"}, 4: set[str]()}  # rows that do not apply at this world size
Line = tuple[str, str, tuple[int, ...]]  # kind, axis, group or (source, destination)

pytestmark = pytest.mark.slow


@cache
def launch(world_size: int) -> list[dict[str, Any]]:
    """One dictionary per rank: label → what it saw."""
    with TemporaryDirectory() as folder:
        command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}", WORKER, folder]
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            capture_output=True,
            text=True,
            timeout=280,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(WORKER.parents[2] / "src")},
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(world_size)]


def plan_for(label: str, world_size: int) -> Plan:
    _, spec, name, given, _ = next(case for case in cases(world_size) if case[0] == label)
    return strategies.get(name).plan(spec, world_size, strategies.resolve_parameters(name, given))


def expected_of(collectives: Iterable[ExpectedCollective], rank: int) -> dict[Line, tuple[int, int]]:
    """Calls and bytes per kind, axis and group that one rank must issue in a step."""
    counts: Counter[Line] = Counter()
    sizes: Counter[Line] = Counter()
    for line in collectives:
        if rank in line.group:
            key = (str(line.kind), str(line.axis), line.group)
            counts[key] += line.count
            sizes[key] += line.bytes
    return {key: (counts[key], sizes[key]) for key in counts}


def seen_of(calls: Iterable[Mapping[str, Any]]) -> dict[Line, tuple[int, int]]:
    counts: Counter[Line] = Counter()
    sizes: Counter[Line] = Counter()
    for call in calls:
        message = call["kind"] == Kind.SEND_RECEIVE
        group = (call["source"], call["destination"]) if message else tuple(call["group"])
        key = (call["kind"], call["axis"], group)
        counts[key] += 1
        sizes[key] += call["bytes"]
    return {key: (counts[key], sizes[key]) for key in counts}


@pytest.mark.parametrize("world_size", [2, 4])
def test_strategies_agree_with_single_and_with_their_plans(world_size: int) -> None:
    ranks = launch(world_size)
    labels = [label for label in ranks[0] if label not in BROKEN]
    assert {case[2] for case in cases(world_size)} == set(strategies.names()) - ELSEWHERE[world_size]
    wrong = []
    for label in labels:
        plan, parity = plan_for(label, world_size), ranks[0][label]["parity"]
        if not parity["passed"]:
            wrong.append((label, parity))
        for rank, seen in enumerate(ranks):
            # Every rank names the same loss, and a request changes neither state nor the ability to train.
            if seen[label]["losses"] != ranks[0][label]["losses"] or len(seen[label]["losses"]) != STEPS - 1:
                wrong.append((label, rank, seen[label]["losses"]))
            if seen[label]["loss after a request"] >= ranks[0][label]["losses"][0]:
                wrong.append((label, rank, "loss after a request"))
            planned = plan.state[rank]
            held = [planned.parameter_bytes, planned.gradient_bytes, planned.optimizer_bytes]
            if not seen[label]["state"] == seen[label]["state after a request"] == held:
                wrong.append((label, rank, seen[label]["state"], held))
            calls = seen_of(seen[label]["calls"])
            if calls != expected_of(plan.collectives, rank):
                wrong.append((label, rank, calls, expected_of(plan.collectives, rank)))
    assert wrong == []


@pytest.mark.parametrize(
    ("label", "world_size"),
    [(label, n) for n in (2, 4) for label in broken(n) if label.endswith(("scaled", "skipped", "dropped"))],
)
def test_wrong_gradients_are_seen(label: str, world_size: int) -> None:
    parity = launch(world_size)[0][label]["parity"]
    assert not parity["passed"]
    assert parity["gradient_error"] > 0.1, "far beyond rounding"
    if "scaled" in label:
        assert parity["loss_error"] < 1e-3, "the losses hardly show it: only the gradients do"


@pytest.mark.parametrize(
    ("label", "world_size", "kind", "more"),
    [
        ("ddp, reduced every micro-batch", 2, Kind.ALL_REDUCE, True),
        ("tensor_sequence, norms left partial", 2, Kind.ALL_REDUCE, True),
        ("tensor_sequence, norms left partial", 4, Kind.ALL_REDUCE, True),
        ("zero3, never resharded", 2, Kind.ALL_GATHER, False),
    ],
)
def test_wrong_communication_is_seen(label: str, world_size: int, kind: Kind, more: bool) -> None:
    """These compute the right gradients: only the plan tells that they are not what they say."""
    ranks = launch(world_size)
    name = BROKEN[label][0]
    plan = strategies.get(name).plan(TINY, world_size, strategies.resolve_parameters(name, {}))
    for rank, seen in enumerate(ranks):
        expected, calls = expected_of(plan.collectives, rank), seen_of(seen[label]["calls"])
        different = {key[0] for key in expected | calls if expected.get(key) != calls.get(key)}
        assert different == {kind}
        count = sum(calls.get(key, (0, 0))[0] - expected.get(key, (0, 0))[0] for key in calls | expected)
        assert count > 0 if more else count < 0


@pytest.mark.parametrize("change", ["count", "bytes", "kind", "group", "missing"])
def test_a_broken_plan_disagrees(change: str) -> None:
    """The comparison above notices any one wrong number in a plan."""
    calls = seen_of(launch(2)[0]["tiny/tensor_sequence"]["calls"])
    lines = list(plan_for("tiny/tensor_sequence", 2).collectives)
    assert expected_of(lines, 0) == calls
    last = lines.pop()
    changed = {
        "count": {"count": last.count + 1},
        "bytes": {"bytes": last.bytes + 4},
        "kind": {"kind": Kind.BROADCAST},
        "group": {"group": (0,)},
    }
    if change != "missing":
        lines.append(msgspec.structs.replace(last, **changed[change]))
    assert expected_of(lines, 0) != calls
