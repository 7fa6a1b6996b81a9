"""What happens to files on their way: bytes lost, flipped, repeated; values of another type or size; files mixed up."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["mutate"]

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 0.5, -0.001, 1e-9, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 1e18, 1e300, 10**30,
    1759276800000000.123,
)  # fmt: skip
STRINGS: tuple[Any, ...] = (
    "", " ", "0", "-1", "1e3", "12.345", "NaN", "null", "[0, 1]", "[0, 1", "\x00\x1b[31m", "a" * 5000,
    "\ud7ff\U0001f600",
    "ProfilerStep#1", "ProfilerStep#99999999999999999999", "kernel", "cpu_op", "gloo:all_reduce", "c10d::send", "X",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "aten::mm", "{{7*7}}", "<script>", "../../etc/passwd",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [1, "a", None], {"rank": 1}, [[[[[[1]]]]]])
Document = Any
Place = tuple[Any, Any]  # a container and the key or index in it


def mutate(folder: Path, chance: random.Random) -> None:
    """Change one to four things in a folder of traces."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        files = sorted(path for path in folder.iterdir() if path.is_file())
        if not files:
            return
        path = chance.choice(files)
        how = chance.choice((_bytes, _bytes, _values, _values, _values, _events, _files))
        how(path, chance)


def _load(path: Path) -> tuple[bytes, bool]:
    data = path.read_bytes()
    try:
        return gzip.decompress(data), True
    except (OSError, EOFError, ValueError):
        return data, False
    except Exception:  # zlib.error: damaged before
        return data, False


def _bytes(path: Path, chance: random.Random) -> None:
    """Damage to the text, or in one of three cases to the compressed bytes of a compressed file."""
    data, packed = _load(path)
    if packed and chance.random() < 1 / 3:
        data, packed = path.read_bytes(), False
    if not data:
        return
    start = chance.randrange(len(data))
    end = min(len(data), start + chance.choice((1, 2, 8, 100, 1000)))
    noise = bytes(chance.randrange(256) for _ in range(chance.choice((1, 2, 30))))
    flipped = bytes(byte ^ (1 << chance.randrange(8)) for byte in data[start:end][:3])
    sign = chance.choice((b'"', b"\\", b",", b"}", b"]", b"{", b"[", b"NaN", b"\x00", b"\xff\xfe"))
    mutated = chance.choice((
        data[:start],  # cut
        data[start:],
        data[:start] + flipped + data[start + len(flipped) :],
        data[:start] + noise + data[start + len(noise) :],
        data[:start] + noise + data[start:],
        data[:start] + data[end:],
        data[:end] + data[start:],
        data[:start] + sign + data[start:],
        data + data,
    ))  # fmt: skip
    path.write_bytes(gzip.compress(mutated, 1) if packed else mutated)


def _values(path: Path, chance: random.Random) -> None:
    """Values replaced by others of the same or another type, moved, or gone."""
    _edit(path, chance, _swap_values)


def _events(path: Path, chance: random.Random) -> None:
    """Events repeated, lost, shuffled, moved in time, put on other threads."""
    _edit(path, chance, _swap_events)


def _edit(path: Path, chance: random.Random, change: Callable[[Document, random.Random], Document]) -> None:
    data, packed = _load(path)
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        _bytes(path, chance)
        return
    document = change(document, chance)
    text = json.dumps(document, indent=chance.choice((None, 1)), ensure_ascii=chance.random() < 0.5)
    mutated = text.encode("utf-8", errors="surrogatepass")
    path.write_bytes(gzip.compress(mutated, 1) if packed else mutated)


def _places(value: Document) -> list[Place]:
    found: list[Place] = []
    todo = [value]
    while todo:
        container = todo.pop()
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, inner in items:
            found.append((container, key))
            if isinstance(inner, dict | list):
                todo.append(inner)
    return found


def _swap_values(document: Document, chance: random.Random) -> Document:
    for _ in range(chance.choice((1, 1, 3, 20))):
        places = _places(document) if isinstance(document, dict | list) else []
        if not places:
            return chance.choice(OTHERS)
        container, key = chance.choice(places)
        value = container[key]
        if chance.random() < 0.15:
            del container[key]
        elif chance.random() < 0.3:
            alike = [place for place in places if place[1] == key and type(place[0][place[1]]) is type(value)]
            other, place = chance.choice(alike)
            container[key], other[place] = other[place], value
        elif isinstance(value, int | float) and not isinstance(value, bool) and chance.random() < 0.7:
            container[key] = chance.choice((*NUMBERS, -value, value * 1000, value + 0.0005, str(value)))
        elif isinstance(value, str) and chance.random() < 0.7:
            container[key] = chance.choice(STRINGS)
        else:
            container[key] = chance.choice((*NUMBERS, *STRINGS, *OTHERS))
    return document


def _swap_events(document: Document, chance: random.Random) -> Document:
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list) or not events:
        return _swap_values(document, chance)
    start = chance.randrange(len(events))
    some = events[start : start + chance.choice((1, 3, 20))]
    choice = chance.randrange(7)
    if choice == 0:
        events += some
    elif choice == 1:
        del events[start : start + len(some)]
    elif choice == 2:
        chance.shuffle(events)
    elif choice == 3:
        events.reverse()
    for event in some if choice > 3 else ():
        if not isinstance(event, dict):
            continue
        if choice == 4:
            shift = chance.choice((-1e6, -500.0, -0.001, 0.0005, 37.0, 1e6, 1e15))
            event["ts"] = event["ts"] + shift if isinstance(event.get("ts"), int | float) else shift
        elif choice == 5:
            event["dur"] = chance.choice((-1, 0, 1e-4, 1e5, 1e12, 18446744073709552, None))
        else:
            event["tid"] = chance.choice((0, 1, 7, 20, "7", -1, None, 10**20))
            event["ph"] = chance.choice(("X", "X", "B", "E", "i", "C", "", 5))
    return document


def _files(path: Path, chance: random.Random) -> None:
    """A file is lost, empty, doubled, or goes by another name."""
    choice = chance.randrange(5)
    if choice == 0 and sum(1 for _ in path.parent.iterdir()) > 1:
        path.unlink()
    elif choice == 1:
        path.write_bytes(b"")
    elif choice == 2:
        path.rename(path.with_name(chance.choice(("rank7.json", "trace.json", "rank99999999.json", "worker0.json.gz"))))
    elif choice == 3:
        path.with_name("rank5.json").write_bytes(path.read_bytes())
    else:
        path.with_name(chance.choice(("stray.json", "run.json", "x.json.tmp"))).write_bytes(b'{"traceEvents": []}')
