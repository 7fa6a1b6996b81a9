"""The kind of a communication event, by evidence: metadata, the causing operation, a kernel's name."""

import re
import tomllib
from functools import lru_cache
from pathlib import Path

from shardscope.errors import ConfigError
from shardscope.vocabulary import Axis, Kind

__all__ = ["Patterns", "axis_of_group", "kind_of_operation"]

# Operation names as torch writes them: "allreduce_", "_allgather_base_", "nccl:all_to_allv", "send 0->1", …
_OPERATIONS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"reduce_?scatter"), Kind.REDUCE_SCATTER),
    (re.compile(r"all_?gather"), Kind.ALL_GATHER),
    (re.compile(r"all_?reduce"), Kind.ALL_REDUCE),
    (re.compile(r"all_?to_?all"), Kind.ALL_TO_ALL),
    (re.compile(r"broadcast"), Kind.BROADCAST),
    (re.compile(r"^_?i?(?:send|recv)(?:_?any_?source)?(?:recv)?_?\b|^point_?to_?point"), Kind.SEND_RECEIVE),
    (re.compile(r"barrier|^_?reduce|^_?gather|^_?scatter"), Kind.OTHER),
)
_PREFIX = re.compile(r"^(?:c10d|_c10d_functional(?:_autograd)?|c10d_functional|symm_mem)::|^(?:nccl|gloo|rccl|xccl):")


@lru_cache(maxsize=4096)
def kind_of_operation(name: str) -> Kind | None:
    """The kind a c10d operation, `nccl:`/`gloo:` annotation or `Collective name` states; None if it states none."""
    text = _PREFIX.sub("", name.strip()).lower()
    return next((kind for pattern, kind in _OPERATIONS if pattern.search(text)), None)


class Patterns:
    """Kernel names that communicate, from pattern files. Raises ConfigError for a file that cannot be used."""

    def __init__(self, extra: Path | None = None) -> None:
        self._rules = (_load(extra.read_text, str(extra)) if extra else []) + list(_shipped())
        self._known: dict[str, Kind | None] = {}

    def kind(self, name: str) -> Kind | None:
        """The kind a kernel's name claims, Kind.UNKNOWN for communication without a kind, None for computation."""
        if name not in self._known:
            self._known[name] = next((kind for pattern, kind in self._rules if pattern.search(name)), None)
        return self._known[name]


@lru_cache(maxsize=1)
def _shipped() -> tuple[tuple[re.Pattern[str], Kind], ...]:
    file = Path(__file__).with_name("kinds.toml")
    return tuple(_load(file.read_text, "kinds.toml"))


def _load(read: object, where: str) -> list[tuple[re.Pattern[str], Kind]]:
    try:
        document = tomllib.loads(read(encoding="utf-8"))  # type: ignore[operator]
        entries = document.get("pattern", [])
        return [(re.compile(entry["match"]), Kind(entry["kind"])) for entry in entries]
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, re.error) as error:
        raise ConfigError(f"{where}: no usable pattern file ({error})") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        known = ", ".join(Kind)
        raise ConfigError(
            f"{where}: each [[pattern]] needs match (a regex) and kind, one of {known} ({error})"
        ) from error


# Megatron, DeepSpeed, torchtitan and DeviceMesh names and descriptions of process groups, tried in order.
_AXES: tuple[tuple[re.Pattern[str], Axis], ...] = (
    (
        re.compile(
            r"expert_?(?:tensor_?)?(?:and_?)?(?:model_?)?parallel|(?<![a-z])(?:ep|etp|moe)(?![a-z])|expert_?model"
        ),
        Axis.EXPERT,
    ),
    (
        re.compile(r"data_?(?:parallel|modulo)|(?<![a-z])(?:ddp|fsdp|hsdp|dp|zero|edp)(?![a-z])|replicate|shard"),
        Axis.DATA,
    ),
    (re.compile(r"context_?parallel|sequence_?parallel|ulysses|(?<![a-z])(?:cp|sp|seq|ring)(?![a-z])"), Axis.SEQUENCE),
    (re.compile(r"pipeline|embedding_?group|(?<![a-z])(?:pp|pipe)(?![a-z])"), Axis.PIPELINE),
    (re.compile(r"tensor|model_?parallel|(?<![a-z])(?:tp|mp)(?![a-z])"), Axis.TENSOR),
)
# The replicas of experts: their gradients are data-parallel traffic. torchtitan splits its dp_shard by expert groups.
_EXPERT_DATA = re.compile(r"expert_?data_?(?:parallel|modulo)|(?<![a-z])(?:edp|efsdp|dp_shard_(?:mod|in)_ep)(?![a-z])")
# Megatron-LM's groups over several axes, for norms of gradients and scales of FP8: no one axis's traffic.
_SEVERAL = re.compile(r"^model_parallel_group$|tensor_and_(?:data|context)|tensor_model_pipeline")


@lru_cache(maxsize=4096)
def axis_of_group(label: str) -> Axis:
    """The dimension a process group's name or description states, Axis.UNKNOWN when it states none."""
    text = label.lower()
    if _SEVERAL.search(text):
        return Axis.UNKNOWN
    if _EXPERT_DATA.search(text):
        return Axis.DATA
    return next((axis for pattern, axis in _AXES if pattern.search(text)), Axis.UNKNOWN)
