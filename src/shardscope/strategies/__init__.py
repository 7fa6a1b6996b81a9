"""The registry: every module of this folder that defines `STRATEGIES` adds rows. Torch-free.

A new strategy is one new file here. The rows of a file are found without a list to keep up.
"""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardscope.errors import ConfigError, did_you_mean
from shardscope.strategies.base import Strategy

__all__ = ["get", "names", "resolve_parameters", "source_files"]

_FOLDER = Path(__file__).parent


@functools.cache
def _registry() -> dict[str, tuple[Strategy, Path]]:
    found: dict[str, tuple[Strategy, Path]] = {}
    for module_info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{__name__}.{module_info.name}")
        for strategy in getattr(module, "STRATEGIES", ()):
            if strategy.name in found:
                raise ConfigError(
                    f"strategy {strategy.name} is defined in {found[strategy.name][1].name} and in "
                    f"{module_info.name}.py; rename one"
                )
            found[strategy.name] = (strategy, Path(str(module.__file__)))
    return found


def names() -> tuple[str, ...]:
    """Names of all strategies, sorted."""
    return tuple(sorted(_registry()))


def get(name: str) -> Strategy:
    """The strategy of that name. Raises ConfigError naming the known ones."""
    return _entry(name)[0]


def source_files(name: str) -> tuple[Path, ...]:
    """The file that defines a strategy and the files of this folder that it imports, sorted: what a digest covers."""
    pending, seen = [_entry(name)[1]], set()
    while pending:
        path = pending.pop()
        if path not in seen:
            seen.add(path)
            pending.extend(_siblings(path))
    return tuple(sorted(seen))


def resolve_parameters(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The strategy's parameters with defaults filled in. Raises ConfigError for an unknown key or a wrong type."""
    defaults = get(name).defaults
    for key, value in given.items():
        if key not in defaults:
            known = ", ".join(sorted(defaults)) or "none"
            raise ConfigError(f"strategy {name} has no parameter {key}{did_you_mean(key, defaults)}; it takes: {known}")
        if not _fits(value, defaults[key]):
            raise ConfigError(
                f"strategy {name}: {key} must be a positive {type(defaults[key]).__name__}, not {value!r}"
            )
    return {**defaults, **given}


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, (int, float)):
        allowed = (int, float) if isinstance(default, float) else int
        return isinstance(value, allowed) and 0 < value < float("inf")
    return isinstance(value, type(default))


def _entry(name: str) -> tuple[Strategy, Path]:
    registry = _registry()
    if name not in registry:
        raise ConfigError(f"unknown strategy {name!r}{did_you_mean(name, registry)}; known: {', '.join(names())}")
    return registry[name]


def _siblings(path: Path) -> list[Path]:
    """Files of this folder imported by `path`, at its top or inside functions."""
    found: list[Path] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            modules = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        for module in modules:
            head, _, last = module.rpartition(".")
            candidate = _FOLDER / f"{last}.py"
            if head == __name__ and candidate.is_file():
                found.append(candidate)
    return found
