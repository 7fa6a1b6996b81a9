"""Facts about the machine that numbers depend on, and the world size that `auto` means. Torch-free.

Cores count only as far as this process may use them: its affinity and the cgroup's CPU quota (v1 and v2).
"""

import math
import os
import platform
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

__all__ = [
    "Machine",
    "cpu_quota",
    "inspect_machine",
    "oom_kills",
    "resolve_world_size",
    "threads_per_rank",
    "versions",
]

_CGROUP = Path("/sys/fs/cgroup")
LEAST_RANKS, MOST_RANKS = 2, 4  # what `auto` chooses between on CPU


@dataclass(frozen=True)
class Machine:
    """What this process may use of the machine. memory_bytes: the smaller of physical memory and cgroup limit."""

    host: str
    cpu: str
    physical_cores: int  # within affinity
    usable_cores: int  # hardware threads within affinity and quota, at least 1
    quota_cores: float | None  # cgroup CPU quota, None without one
    memory_bytes: int

    @property
    def cores_for_ranks(self) -> int:
        """Physical cores that ranks can really have at the same time."""
        quota = math.inf if self.quota_cores is None else self.quota_cores
        return max(1, min(self.physical_cores, math.floor(quota) if quota < math.inf else self.physical_cores))


def inspect_machine() -> Machine:
    """Read the facts of the machine this process runs on."""
    affinity = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    quota = cpu_quota()
    usable = len(affinity) if quota is None else min(len(affinity), max(1, math.floor(quota)))
    return Machine(
        host=socket.gethostname(),
        cpu=_cpu_name(),
        physical_cores=_physical_cores(affinity),
        usable_cores=usable,
        quota_cores=quota,
        memory_bytes=_memory_bytes(),
    )


def resolve_world_size(setting: int | Literal["auto"], gpus: int, machine: Machine) -> int:
    """`setting`, or for "auto": `gpus` if there are any, else physical cores within affinity and quota, from 2 to 4.

    With one GPU that is one rank: `single` runs on it and nothing else applies. Ranks on the CPU beside it would be
    measured on another kind of device than `single`.
    """
    if setting != "auto":
        return setting
    return gpus if gpus >= 1 else min(max(machine.cores_for_ranks, LEAST_RANKS), MOST_RANKS)


def threads_per_rank(world_size: int, machine: Machine) -> int:
    """Compute threads one rank gets: an equal share of the physical cores, at least 1."""
    return max(1, machine.cores_for_ranks // world_size)


def cpu_quota(root: Path = _CGROUP, membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """The tightest CPU quota of the cgroups this process is in, in cores; None when there is none."""
    quotas = []
    for folder in _cgroup_folders(root, membership, "cpu"):
        try:
            if (folder / "cpu.max").exists():
                limit, period = (folder / "cpu.max").read_text().split()[:2]
            else:
                limit = (folder / "cpu.cfs_quota_us").read_text().strip()
                period = (folder / "cpu.cfs_period_us").read_text().strip()
            if limit not in ("max", "-1"):
                quotas.append(int(limit) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return min(quotas, default=None)


def oom_kills(root: Path = _CGROUP, membership: Path = Path("/proc/self/cgroup")) -> int:
    """How many processes of this cgroup the kernel has killed for memory (oom_kill counter; 0 where unreadable)."""
    counts = [0]
    for folder in _cgroup_folders(root, membership, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            try:
                lines = (folder / name).read_text().splitlines()
            except OSError:
                continue
            counts += [int(line.split()[1]) for line in lines if line.startswith("oom_kill ")]
    return max(counts)


def versions() -> dict[str, str]:
    """Versions of what the numbers depend on."""
    found = {"python": platform.python_version(), "kernel": platform.release()}
    for package in ("shardscope", "torch", "numpy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _cgroup_folders(root: Path, membership: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup and its ancestors, for v2 and for v1's `controller`."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    bases = {root: "/", root / controller: "/"}  # inside a container its own cgroup is often mounted as the root
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            bases[root] = path
        elif controller in controllers.split(","):
            bases[root / controllers] = bases[root / controller] = path
    for base, path in bases.items():
        folder = base / path.lstrip("/")
        while True:
            if folder.is_dir():
                yield folder
            if folder == base or base not in folder.parents:
                break
            folder = folder.parent


def _physical_cores(cpus: list[int]) -> int:
    cores = set()
    for cpu in cpus:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            package = (topology / "physical_package_id").read_text().strip()
            cores.add((package, (topology / "core_id").read_text().strip()))
        except OSError:
            cores.add(("", str(cpu)))  # no topology: count the hardware thread as a core
    return len(cores)


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for folder in _cgroup_folders(_CGROUP, Path("/proc/self/cgroup"), "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            try:
                sizes.append(int((folder / name).read_text()))
            except (OSError, ValueError):
                continue
    return min(sizes)
