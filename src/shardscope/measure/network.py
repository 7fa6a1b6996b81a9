"""An emulated link: run a command in a network namespace of its own, where all that goes over loopback has one rate.

The ranks of a job talk over `lo`; a token bucket (tc's tbf) on it lets pass what the rate allows. Loopback is one
queue: all ranks and both directions share the rate, so communication takes (all bytes on lo) · 8 / rate. No privileges
are needed: `unshare -rn` gives a user namespace as well. Torch-free.

`python -m shardscope.measure.network MBIT COMMAND …`, inside the namespace, sets the rate and becomes COMMAND.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["command_at_rate", "loopback_bytes", "unavailable"]

# The bucket must hold a whole packet; a bucket much larger than a message would let it pass for nothing.
_PACKET_BYTES, _BUCKET_BYTES, _LONGEST_WAIT = 16384, 40960, "2000ms"
_PROBE_S = 20
_COUNTERS = Path("/proc/net/dev")


def command_at_rate(rate_mbit: float, command: Sequence[str]) -> list[str]:
    """`command` so that it runs in a namespace whose loopback passes `rate_mbit` · 10⁶ bits per second.

    The process that is started becomes `command`: its number and its parent stay the same.
    """
    return ["unshare", "-rn", "--", sys.executable, "-m", "shardscope.measure.network", repr(rate_mbit), *command]


def unavailable(rate_mbit: float) -> str | None:
    """Why a rate cannot be emulated here and what to do about it, or None. Takes some hundredths of a second."""
    if not sys.platform.startswith("linux"):
        return "a rate is emulated with network namespaces, which only Linux has"
    for program, package in (("unshare", "util-linux"), ("ip", "iproute2"), ("tc", "iproute2")):
        if _program(program) is None:
            return f"{program} is missing; install {package} (Debian: apt-get install {package})"
    try:
        done = subprocess.run(
            command_at_rate(rate_mbit, [sys.executable, "-c", ""]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"network namespaces do not work here ({error})"
    if done.returncode == 0:
        return None
    said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
    return f"network namespaces or tc's tbf are not allowed here ({said[-300:]})"


def loopback_bytes() -> int | None:
    """Bytes that `lo` of this network namespace has sent so far, packet headers included; None where it is not said."""
    try:
        lines = _COUNTERS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == "lo":
            return int(numbers.split()[8])
    return None


def _program(name: str) -> str | None:
    """Where a program lies; /sbin is not on everybody's path."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _become(rate_mbit: float, command: Sequence[str]) -> None:
    """Set the rate on `lo` of this namespace, then replace this process by `command`."""
    ip, tc = _program("ip"), _program("tc")
    if ip is None or tc is None:
        sys.exit("ip or tc is missing; install iproute2")
    up = subprocess.run([ip, "-o", "link", "show", "up", "dev", "lo"], capture_output=True, text=True)
    if up.stdout.strip():
        # Only a namespace that was just made has `lo` down: the machine's own loopback is left alone.
        sys.exit("shardscope.measure.network: not in a network namespace of its own; start it through unshare -rn")
    shape = ["tbf", "rate", f"{rate_mbit * 1e6:.0f}bit", "burst", str(_BUCKET_BYTES), "latency", _LONGEST_WAIT]
    for setting in (
        [ip, "link", "set", "lo", "mtu", str(_PACKET_BYTES), "up"],
        [tc, "qdisc", "add", "dev", "lo", "root", *shape],
    ):
        done = subprocess.run(setting, capture_output=True, text=True, errors="replace")
        if done.returncode:
            sys.exit(f"{' '.join(setting)}: {done.stderr.strip() or done.returncode}")
    os.execvp(command[0], list(command))


if __name__ == "__main__":
    _become(float(sys.argv[1]), sys.argv[2:])
