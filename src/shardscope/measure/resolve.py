"""A strategy by name: a row of the registry, or `module:attribute` for one defined elsewhere. Torch-free."""

import importlib
from collections.abc import Mapping
from typing import Any, cast

from shardscope import strategies
from shardscope.errors import ConfigError
from shardscope.strategies.base import Strategy

__all__ = ["find_strategy", "full_parameters"]


def find_strategy(name: str) -> Strategy:
    """The strategy called `name`. Raises ConfigError when there is none."""
    module, colon, attribute = name.partition(":")
    if not colon:
        return strategies.get(name)
    try:
        return cast(Strategy, getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"strategy {name}: cannot be imported ({error}); write it as module:attribute") from error


def full_parameters(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with the strategy's defaults filled in. Raises ConfigError for keys and values it does not take."""
    if ":" not in name:
        return strategies.resolve_parameters(name, given)
    defaults = find_strategy(name).defaults
    unknown = sorted(set(given) - set(defaults))
    if unknown:
        raise ConfigError(f"strategy {name} has no parameter {unknown[0]}; it takes: {', '.join(sorted(defaults))}")
    return {**defaults, **given}
