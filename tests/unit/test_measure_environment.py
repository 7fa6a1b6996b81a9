"""World size and the limits it follows from."""

from pathlib import Path
from typing import Any

import pytest

from shardscope.measure.environment import (
    Machine,
    cpu_quota,
    inspect_machine,
    oom_kills,
    resolve_world_size,
    threads_per_rank,
)


def machine(physical: int, quota: float | None = None) -> Machine:
    return Machine(host="h", cpu="c", physical_cores=physical, usable_cores=physical, quota_cores=quota, memory_bytes=1)


@pytest.mark.parametrize(
    ("setting", "gpus", "physical", "quota", "world_size", "threads"),
    [
        ("auto", 0, 2, None, 2, 1),
        ("auto", 0, 16, None, 4, 4),
        ("auto", 0, 3, None, 3, 1),
        ("auto", 0, 16, 2.9, 2, 1),  # the quota counts, rounded down
        ("auto", 0, 1, None, 2, 1),  # two ranks at least: oversubscribed, and labelled so
        ("auto", 0, 8, 0.5, 2, 1),
        ("auto", 1, 4, None, 1, 4),  # one GPU: only `single`, on it
        (2, 1, 4, None, 2, 2),  # asked for: two ranks, which one GPU cannot hold, on the CPU
        ("auto", 8, 4, None, 8, 1),
        (3, 8, 64, None, 3, 21),
    ],
)
def test_world_size(setting: Any, gpus: int, physical: int, quota: float | None, world_size: int, threads: int) -> None:
    here = machine(physical, quota)
    assert resolve_world_size(setting, gpus, here) == world_size
    assert threads_per_rank(world_size, here) == threads


def test_the_tightest_quota_on_the_path_counts(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/outer/inner\n")
    root = tmp_path / "v2"
    (root / "outer" / "inner").mkdir(parents=True)
    (root / "outer" / "cpu.max").write_text("150000 100000\n")
    (root / "outer" / "inner" / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(root, membership) == 1.5
    (root / "outer" / "memory.events").write_text("oom 2\noom_kill 3\n")
    assert oom_kills(root, membership) == 3


def test_version_1_of_cgroups(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("4:memory:/job\n2:cpu,cpuacct:/job\n")
    root = tmp_path / "v1"
    (root / "cpu" / "job").mkdir(parents=True)
    (root / "cpu" / "job" / "cpu.cfs_quota_us").write_text("400000\n")
    (root / "cpu" / "job" / "cpu.cfs_period_us").write_text("100000\n")
    (root / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (root / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (root / "memory" / "job").mkdir(parents=True)
    (root / "memory" / "job" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert cpu_quota(root, membership) == 4.0
    assert oom_kills(root, membership) == 1


def test_no_limits(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path, tmp_path / "absent") is None
    assert oom_kills(tmp_path, tmp_path / "absent") == 0


def test_this_machine_can_be_described() -> None:
    here = inspect_machine()
    assert here.physical_cores >= 1
    assert 1 <= here.cores_for_ranks <= here.usable_cores
    assert here.memory_bytes > 1 << 27
