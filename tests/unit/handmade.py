"""Small traces written by hand for tests. Times are microseconds from the start of the first step."""

import json
from pathlib import Path
from typing import Any

ORIGIN_US = 1_000_000


class HandMade:
    """Collects events of one rank and writes them as a trace file."""

    def __init__(self, rank: int | None = 0, world: int = 2, backend: str = "gloo", groups: Any = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.top: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": 1_759_276_800_000_000_000}
        if rank is not None:
            config = groups or [
                {"pg_name": "0", "pg_desc": "default_pg", "pg_size": world, "ranks": list(range(world))}
            ]
            info = {"backend": backend, "rank": rank, "world_size": world, "pg_count": len(config), "pg_config": config}
            self.top["distributedInfo"] = info

    def add(self, cat: str, name: str, start: float, end: float, tid: int = 1, **args: Any) -> "HandMade":
        """One timed event [start, end)."""
        event = {"ph": "X", "cat": cat, "name": name, "pid": 10, "tid": tid}
        event |= {"ts": ORIGIN_US + start, "dur": round(end - start, 3), "args": args}
        self.events.append(event)
        return self

    def step(self, number: int, start: float, end: float) -> "HandMade":
        return self.add("user_annotation", f"ProfilerStep#{number}", start, end)

    def op(self, name: str, start: float, end: float, tid: int = 1, **args: Any) -> "HandMade":
        return self.add("cpu_op", name, start, end, tid, **args)

    def span(self, name: str, start: float, end: float, tid: int = 7, **args: Any) -> "HandMade":
        return self.add("user_annotation", name, start, end, tid, **args)

    def kernel(self, name: str, start: float, end: float, stream: int = 7, **args: Any) -> "HandMade":
        """A device kernel; with `correlation` and `launch` also its launch on the host."""
        launch = args.pop("launch", None)
        args |= {"device": 0, "stream": stream}
        self.add("kernel", name, start, end, stream, **args)
        if launch is not None:
            self.add("cuda_runtime", "cudaLaunchKernel", launch, launch + 1, 1, correlation=args["correlation"])
        return self

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps({**self.top, "traceEvents": self.events}), encoding="utf-8")
        return path


def dims(*sizes: int) -> dict[str, Any]:
    """Shapes of one-dimensional float tensors as the profiler records them."""
    return {"Input Dims": [[size] for size in sizes], "Input type": ["float"] * len(sizes)}
