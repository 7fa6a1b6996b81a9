"""The registry: every module of this folder that defines `STRATEGIES` adds rows. Torch-free.

A new strategy is one new file here. The rows of a file are found without a list to keep up.
"""

from __future__ import annotations

import ast
import functools
import importlib
import pkgutil
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from shardscope.errors import ConfigError, did_you_mean
from shardscope.strategies.base import Strategy

__all__ = ["get", "names", "resolve_parameters", "source_files"]

_FOLDER = Path(__file__).parent
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_GREATEST = 10**9  # of a number among the parameters
_TAKEN = frozenset({"checked"})  # reports/data/<workload>/checked holds the marks of the check rule


@functools.cache
def _registry() -> dict[str, tuple[Strategy, Path]]:
    found: dict[str, tuple[Strategy, Path]] = {}
    for module_info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        module = _imported(module_info.name)
        for strategy in getattr(module, "STRATEGIES", ()):
            _check(strategy, f"strategies/{module_info.name}.py")
            if strategy.name in found:
                raise ConfigError(
                    f"strategy {strategy.name} is defined in {found[strategy.name][1].name} and in "
                    f"{module_info.name}.py; rename one"
                )
            found[strategy.name] = (strategy, Path(str(module.__file__)))
    return found


def _imported(name: str) -> ModuleType:
    """A module of this folder. Raises ConfigError, one line naming the file, when it cannot be imported."""
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except Exception as error:  # whatever the file does at its top: SyntaxError, NameError, ImportError, …
        raise ConfigError(
            f"strategies/{name}.py cannot be imported ({type(error).__name__}: {error}); correct it or remove it"
        ) from error


def _check(strategy: Any, file: str) -> None:
    """Names become folder names and parts of wildcards; a class instead of an object works nowhere."""
    wanted = ("name", "display_name", "shards", "defaults", "memory_formula", "not_applicable", "plan", "build")
    missing = [field for field in wanted if not hasattr(strategy, field)]
    if isinstance(strategy, type) or missing:
        lacks = f"lacks {', '.join(missing)}" if missing else "is a class, not an object"
        raise ConfigError(f"{file}: {strategy!r} in STRATEGIES {lacks}; see strategies/base.py")
    if not _NAME.fullmatch(str(strategy.name)) or strategy.name in _TAKEN:
        raise ConfigError(
            f"{file}: {strategy.name!r} cannot be a strategy's name; use a-z, 0-9, - and _, 40 characters at most, "
            f"and none of {', '.join(sorted(_TAKEN))}"
        )


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
            raise ConfigError(f"strategy {name}: {key} must be {_wanted(defaults[key])}, not {value!r}")
    return {**defaults, **given}


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(value, bool) and isinstance(default, bool)
    if isinstance(default, (int, float)):
        allowed = (int, float) if isinstance(default, float) else int
        return isinstance(value, allowed) and 0 < value <= _GREATEST
    return isinstance(value, type(default))


def _wanted(default: Any) -> str:
    if isinstance(default, bool):
        return "true or false"
    if isinstance(default, (int, float)):
        return f"a positive {'whole ' if isinstance(default, int) else ''}number, 10^9 at most"
    return f"a {type(default).__name__}"


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
