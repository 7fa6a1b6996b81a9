"""What is wrong with a configuration file before its keys are looked at: syntax, encoding, keys given twice.

YAML keeps the last of two equal keys without a word, so a second `measure:` section would undo the first.
"""

import json
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from shardscope.errors import ConfigError

__all__ = ["refuse_unreadable"]


def refuse_unreadable(path: Path) -> None:
    """Raise ConfigError, one line with the place in the file, unless `path` is a mapping in YAML or JSON."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: no such file in {Path.cwd()}; run where it is, or name one with --configfile"
        ) from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); name a file in YAML or JSON") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text, at byte {error.start}; save it as UTF-8") from error
    if not text.strip() or not _is_json(text, path):
        _check_yaml(text, path)


def _is_json(text: str, path: Path) -> bool:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in pairs:
            if key in found:
                raise ConfigError(f"{path}: the key {key!r} is given twice in one section; keep one of the two")
            found[key] = value
        return found

    try:
        return isinstance(json.loads(text, object_pairs_hook=unique), dict)
    except (ValueError, RecursionError):
        return False


def _check_yaml(text: str, path: Path) -> None:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{path}: holds no keys; write sections such as `workloads:` and `strategies:`")
        _check_node(root, path, above=(), done=set())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        hint = "; indent with spaces, not tabs" if "\\t" in str(error.problem) else ""
        raise ConfigError(f"{path}{where}: not YAML: {error.problem or error.context}{hint}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error


def _check_node(node: Any, path: Path, above: tuple[int, ...], done: set[int]) -> None:
    """Refuse equal keys and nodes that contain themselves. Each node is looked at once, however often it is named."""
    if id(node) in above:
        raise ConfigError(f"{path}, line {node.start_mark.line + 1}: this section contains itself; write it out")
    if id(node) in done or not isinstance(node, yaml.CollectionNode):
        return
    done.add(id(node))
    children = node.value
    if isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
                continue
            line = key.start_mark.line + 1
            if key.value in first:
                raise ConfigError(
                    f"{path}, line {line}: the key {key.value!r} is given twice, first in line {first[key.value]}; "
                    "keep one of the two"
                )
            first[key.value] = line
        children = [value for _, value in node.value]
    for child in children:
        _check_node(child, path, (*above, id(node)), done)
