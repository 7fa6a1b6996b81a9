"""Where a workload's own model comes from: its file, found without running it, and its builder. Torch-free."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import sysconfig
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from shardscope.errors import ConfigError
from shardscope.workload.spec import WorkloadSpec

__all__ = ["check_model", "load_builder", "source_files"]


def check_model(spec: WorkloadSpec) -> None:
    """Raise ConfigError, one line, if the module of the workload's own model is not to be found. Runs none of it."""
    if spec.model is not None:
        _module_file(spec)


def source_files(spec: WorkloadSpec) -> tuple[tuple[str, Path], ...]:
    """(name, file) of the model's module and of all that it imports from beside it: what a digest covers, sorted.

    Empty for the built-in model and for one that comes from the Python installation, whose files nobody edits.
    Raises ConfigError where the module is not found.
    """
    if spec.model is None:
        return ()
    module = spec.model.partition(":")[0]
    file = _module_file(spec)
    root = file.parents[module.count(".") + (file.name == "__init__.py")]
    installed = [Path(sysconfig.get_paths()[name]).resolve() for name in ("purelib", "platlib", "stdlib")]
    if any(root.resolve().is_relative_to(folder) for folder in installed):
        return ()
    found: dict[str, Path] = {}
    pending = [module]
    while pending:
        name = pending.pop()
        for path in _files_of(root, name):
            key = path.relative_to(root).as_posix()
            if key not in found:
                found[key] = path
                pending.extend(_imported(path, root))
    return tuple(sorted(found.items()))


def load_builder(spec: WorkloadSpec) -> Callable[[WorkloadSpec], Any]:
    """The builder that `spec.model` names. Raises ConfigError, one line, when there is none or its module fails."""
    assert spec.model is not None
    module, _, attribute = spec.model.partition(":")
    folder = str(_folder(spec))
    if folder not in sys.path:
        sys.path.insert(0, folder)  # stays: the module may import its neighbours later
    try:
        builder = getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        raise ConfigError(f"{_key(spec)}: module {module} has no {attribute} ({error}); name its builder") from error
    except (Exception, SystemExit) as error:  # whatever the module does at its top
        raise ConfigError(
            f"{_key(spec)}: cannot be imported ({type(error).__name__}: {error}); correct it, or model_path"
        ) from error
    if not callable(builder):
        raise ConfigError(f"{_key(spec)}: {attribute} is a {type(builder).__name__}, not a function; name the builder")
    return builder  # type: ignore[no-any-return]


def _key(spec: WorkloadSpec) -> str:
    return f"workload {spec.name}: model {spec.model}"


def _folder(spec: WorkloadSpec) -> Path:
    try:
        return Path(spec.model_path or ".").expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"workload {spec.name}: model_path {spec.model_path!r} names no folder ({error}); correct it"
        ) from error


def _module_file(spec: WorkloadSpec) -> Path:
    """The file of the model's module. Only the names of files are looked at: nothing of a package runs."""
    assert spec.model is not None
    module = spec.model.partition(":")[0]
    locations: list[str] | None = [str(_folder(spec)), *sys.path]
    found: ModuleSpec | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        found = None if locations is None else PathFinder.find_spec(name, locations)
        if found is None and name == part:
            found = _elsewhere(name)
        if found is None:
            where = f"in {_folder(spec)} or on the Python path" if name == part else "in its package"
            raise ConfigError(f"{_key(spec)}: there is no module {name} {where}; correct `model`, or set model_path")
        inside = found.submodule_search_locations
        locations = None if inside is None else list(inside)
    assert found is not None
    if found.origin is None or not found.has_location:
        raise ConfigError(f"{_key(spec)}: module {module} has no file; name the module that defines the builder")
    return Path(found.origin)


def _elsewhere(name: str) -> ModuleSpec | None:
    """A package that another finder knows (an editable installation). Looking up a top-level name runs nothing."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _files_of(root: Path, module: str) -> Iterator[Path]:
    """The file of a module under `root` and those of the packages around it; nothing if it is not there."""
    parts = module.split(".")
    base = root.joinpath(*parts)
    own = next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)
    if own is not None:
        yield own
        for depth in range(1, len(parts)):
            around = root.joinpath(*parts[:depth]) / "__init__.py"
            if around.is_file():
                yield around


def _imported(path: Path, root: Path) -> Iterator[str]:
    """Names of modules that a file imports, at its top or inside functions; a name may also be that of an attribute."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # importing it will say so
    package = path.relative_to(root).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *([node.module] if node.module else [])])
            if base:
                yield base
            yield from (f"{base}.{alias.name}" if base else alias.name for alias in node.names)
