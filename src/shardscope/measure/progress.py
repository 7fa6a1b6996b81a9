"""How far a measuring job is and how long it will still take, from what it has measured so far. Torch-free.

Rank 0 tells where it is between steps, outside the clock: one write of some 30 bytes to a pipe, microseconds that end
before the barrier where the next step's clock starts, on all ranks alike. Only where the launcher sits at a terminal
is there a pipe; it looks at it twice a second.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from shardscope.measure.job import AGREED_FILE, Agreed, Job, Mode, read_json
from shardscope.progress import Inbox, Outbox, StatusLine, on_terminal, time_left

__all__ = ["Estimate", "Phase", "Reporter", "Watch", "phases"]

PIPE = "progress"
_LOOK_S = 0.5

# Costs in training steps of the candidate, as seen with workloads of 0.1 to 0.3 s per step: profiled steps, exporting
# and reading back included. Only the time left before such a phase rests on them; within it, and after, measured
# times count.
_MEMORY = 8.0
_PROFILED_STEP = 2.0
_REQUEST = 0.1

_WARM_UP = "warm-up"


@dataclass(frozen=True)
class Phase:
    """`count` units of about `cost` training steps each; unit None: not counted while it lasts."""

    name: str
    unit: str | None = None
    count: int = 1
    cost: float = 0.0


def phases(job: Job, mode: Mode) -> tuple[Phase, ...]:
    """What rank 0 goes through, in order (measure.steps)."""
    settings = job.settings
    if job.mode == "reference":
        return Phase("starting"), Phase("building"), Phase("training", "steps", settings.loss_steps, 1)
    single = job.strategy == "single"
    candidate = (
        Phase("building"),
        Phase("parity", "steps", settings.loss_steps, 1),
        Phase("memory", cost=_MEMORY),
        Phase("profile", cost=_PROFILED_STEP * (settings.profiled_steps + 1)),
    )
    if mode == "alternate":
        width = 4 if single else 3
        rest = (
            Phase("building baseline"),
            Phase(_WARM_UP, "steps", settings.warmup_steps - 1 + width, 1),
            Phase("timing", "triples", settings.triples, width),
            Phase("request latency", "requests", settings.requests, 2 * _REQUEST),
        )
        return Phase("starting"), Phase("matmul peak"), *candidate, *rest, Phase("finishing")
    block = (
        Phase(_WARM_UP, "steps", settings.warmup_steps, 1),
        Phase("timing", "steps", settings.triples, 1),
        Phase("request latency", "requests", settings.requests, _REQUEST),
    )
    baseline = (Phase("building baseline"), *block) if mode == "blocks" else ()
    all_cores = (Phase("timing with all cores", "steps", settings.triples, 1),) if single else ()
    return (
        *(Phase("starting"), Phase("matmul peak"), *baseline, *candidate, *block, *all_cores, *baseline),
        Phase("finishing"),
    )


class Estimate:
    """Where a job is in its phases and what is left. Times in seconds, of one clock of the rank that tells."""

    def __init__(self, expected: Sequence[Phase]) -> None:
        self.expected = expected
        self.at = 0  # index of the phase
        self.done = 0
        self._began = self._last = 0.0
        self._first: tuple[int, float] | None = None  # the first unit done: it is slow, so rates count from its end
        self._unit_s: float | None = None
        self._step_s: float | None = None

    def note(self, name: str, done: int, time_s: float) -> None:
        """The job is in phase `name`, the current or a later one, with `done` units behind it."""
        if name != self.expected[self.at].name:
            later = range(self.at + 1, len(self.expected))
            found = next((index for index in later if self.expected[index].name == name), None)
            if found is None:
                return
            self.at, self._began, self._first, self._unit_s = found, time_s, None, None
        self.done, self._last = done, time_s
        if done and self._first is None:
            self._first = (done, time_s)
        elif self._first is not None and done > self._first[0]:
            self._unit_s = (time_s - self._first[1]) / (done - self._first[0])
            phase = self.expected[self.at]
            if phase.cost >= 1 and phase.name != _WARM_UP:  # that is mostly the baseline's, and short
                self._step_s = self._unit_s / phase.cost

    def left_s(self, silent_s: float = 0.0) -> float | None:
        """Seconds still to go, `silent_s` after the last note; None before a step has been timed."""
        if self._step_s is None:
            return None
        phase = self.expected[self.at]
        if phase.unit is None:
            here = phase.cost * self._step_s - (self._last - self._began)
        else:
            unit = phase.cost * self._step_s if self._unit_s is None else self._unit_s
            here = (phase.count - self.done) * unit
        later = sum(phase.count * phase.cost for phase in self.expected[self.at + 1 :])
        return max(0.0, here - silent_s) + later * self._step_s

    def text(self, silent_s: float = 0.0) -> str:
        """The state in words."""
        phase = self.expected[self.at]
        counted = f" {self.done}/{phase.count} {phase.unit}" if phase.unit is not None else ""
        left = self.left_s(silent_s)
        ending = f", {time_left(left)}" if left is not None and left >= 0.5 else ""
        return f"{phase.name}{counted} (phase {self.at + 1} of {len(self.expected)}){ending}"


class Reporter:
    """Rank 0's side."""

    def __init__(self, folder: Path) -> None:
        self._outbox = Outbox(folder / PIPE)

    def tell(self, phase: str, done: int = 0) -> None:
        """Say where the job is. Never between starting and stopping a clock."""
        self._outbox.send(f"{time.monotonic():.3f} {done} {phase}")


class Watch:
    """The launcher's side: a context manager around one launch. Shows nothing where stderr is no terminal."""

    def __init__(self, job: Job) -> None:
        self._folder = Path(job.folder)
        self._job = job
        self._label = f"{job.spec.name}/{'reference' if job.mode == 'reference' else job.strategy}"
        self._line = StatusLine()
        self._inbox: Inbox | None = None
        self._estimate: Estimate | None = None
        self._looked = self._heard = 0.0

    def __enter__(self) -> "Watch":
        if on_terminal():
            try:
                self._inbox = Inbox(self._folder / PIPE)
            except OSError:  # a file system without pipes: no progress, the same results
                return self
            self._line.show(f"{self._label}: starting")
        return self

    def __exit__(self, *_: object) -> None:
        if self._inbox is not None:
            self._inbox.close()
        self._line.clear()

    def look(self) -> None:
        """Bring the line up to date, if it is time for that."""
        now = time.monotonic()
        if self._inbox is None or now - self._looked < _LOOK_S:
            return
        self._looked = now
        for message in self._inbox.take():
            with suppress(ValueError):  # not from a Reporter
                self._note(message, now)
        if self._estimate is not None:
            self._line.show(f"{self._label}: {self._estimate.text(now - self._heard)}")

    def _note(self, message: str, now: float) -> None:
        time_s, done, phase = message.split(" ", 2)
        if self._estimate is None:
            self._estimate = Estimate(phases(self._job, _mode(self._job, self._folder)))
        self._estimate.note(phase, int(done), float(time_s))
        self._heard = now


def _mode(job: Job, folder: Path) -> Mode:
    """The job's mode, unless the ranks have found that the baseline does not apply."""
    try:
        agreed = read_json(folder / AGREED_FILE, Agreed)
    except (OSError, msgspec.MsgspecError):
        return job.mode
    return "alone" if agreed.baseline_not_applicable is not None else job.mode
