"""No process of a job outlives the one that started it. Torch-free."""

import ctypes
import os
import signal
import sys

__all__ = ["end_with_parent"]

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, with_signal: signal.Signals) -> None:
    """Have the kernel send `with_signal` to this process when process `parent` dies, however it dies.

    Linux only; elsewhere the launcher's own clean-up must do. Exits at once if `parent` is gone already.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, with_signal)
        if os.getppid() != parent:
            raise SystemExit(f"the process {parent} that started this one is gone")
