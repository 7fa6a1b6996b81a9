"""What a user's own model offers (workload/protocol.py), checked on the meta device; and what it lacks."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from shardscope.errors import ConfigError
from shardscope.workload.outline import AttentionCore, ExpertModule, TensorModule
from shardscope.workload.pieces import blocks_of
from shardscope.workload.protocol import PIECES, SEQUENCE_STYLES, STYLES, TensorPlan
from shardscope.workload.spec import WorkloadSpec

__all__ = ["Offer", "Seen"]


@dataclass
class Seen:
    """What one step showed. Sizes are of one sample."""

    order: list[str] = field(default_factory=list)  # parameters as their gradients are completed
    inputs: dict[str, list[torch.Tensor]] = field(default_factory=dict)  # of the watched submodules
    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    repeated: dict[str, tuple[int, int]] = field(default_factory=dict)  # entered, finished again in backward
    boundary: tuple[int, ...] = ()
    flops: int | None = None
    block_flops: int | None = None
    saved: int | None = None


class Offer:
    """What the model offers, checked, and what it lacks."""

    def __init__(self, spec: WorkloadSpec, model: nn.Module) -> None:
        self.spec, self.model = spec, model
        self.where = f"workload {spec.name}: model {spec.model}"
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.missing: dict[str, str] = {}
        self.first: tuple[str, ...] = ()
        self.last: tuple[str, ...] = ()
        self.boundary: tuple[int, ...] = ()
        self.blocks = self._blocks()
        self.styles, self.sizes = self._tensor_plan()
        self.sequence = self._named_plan("sequence_parallel_plan", SEQUENCE_STYLES)
        self.experts = self._experts()

    def watched(self) -> dict[str, str]:
        """Submodules whose inputs and outputs matter → the argument that is the input ('' for the first)."""
        tensor = {name: style.partition(":")[2] for name, style in self.styles.items()}
        return {**dict.fromkeys([*self.sequence, *self.experts], ""), **tensor}

    def require_blocks(self) -> None:
        """Raise ConfigError unless there are blocks to recompute."""
        if not self.blocks:
            raise ConfigError(f"{self.where}: `recompute` needs `blocks`; offer them, or leave it out")

    def names_in(self, module: nn.Module) -> list[str]:
        """Names in the whole model of a module's parameters. Raises ConfigError for one that is not the model's own."""
        found = []
        for name, parameter in module.named_parameters():
            if id(parameter) not in self.names:
                raise ConfigError(f"{self.where}: {name} is not a parameter of the model; use its own submodules")
            found.append(self.names[id(parameter)])
        return found

    def _offered(self, piece: str) -> Any:
        """The attribute of that name; noted as missing if there is none."""
        found = getattr(self.model, piece, None)
        if found is None:
            self.missing[piece] = PIECES[piece]
        return found

    def _call(self, piece: str, *arguments: Any) -> Any:
        try:
            return getattr(self.model, piece)(*arguments)
        except (Exception, SystemExit) as error:  # whatever the user's code does
            raise ConfigError(f"{self.where}: {piece} fails ({type(error).__name__}: {error}); correct it") from error

    def _blocks(self) -> list[nn.Module]:
        if self._offered("blocks") is None:
            return []
        try:
            blocks = blocks_of(self.model)
        except (AttributeError, TypeError) as error:
            raise ConfigError(f"{self.where}: `blocks` names what is not there ({error})") from error
        if len(blocks) != self.spec.layers:
            raise ConfigError(
                f"{self.where}: it has {len(blocks)} blocks, the workload says layers: {self.spec.layers}; "
                "make the builder use spec.layers, or correct the number"
            )
        held = [name for block in blocks for name in self.names_in(block)]
        if len(set(held)) != len(held):
            raise ConfigError(f"{self.where}: two blocks share a parameter; `blocks` must be separate modules")
        return blocks

    def _named_plan(self, piece: str, styles: Sequence[str]) -> dict[str, str]:
        if self._offered(piece) is None:
            return {}
        return self._checked(piece, self._call(piece), styles)

    def _checked(self, piece: str, plan: Any, styles: Sequence[str]) -> dict[str, str]:
        if not isinstance(plan, Mapping):
            raise ConfigError(f"{self.where}: {piece} returned a {type(plan).__name__}, not a mapping")
        for name, style in plan.items():
            if str(style).partition(":")[0] not in styles:
                raise ConfigError(f"{self.where}: {piece}: {style!r} is not one of {', '.join(styles)}")
            self._submodule(piece, str(name))
        return {str(name): str(style) for name, style in plan.items()}

    def _submodule(self, piece: str, name: str) -> nn.Module:
        try:
            return self.model.get_submodule(name)
        except AttributeError as error:
            raise ConfigError(f"{self.where}: {piece}: the model has no submodule {name}") from error

    def _tensor_plan(self) -> tuple[dict[str, str], dict[str, int]]:
        if self._offered("tensor_parallel_plan") is None:
            self.missing["sequence"] = PIECES["tensor_parallel_plan"]
            return {}, {}
        plan = self._call("tensor_parallel_plan")
        sizes = dict(plan.sizes) if isinstance(plan, TensorPlan) else {}
        given = plan.styles if isinstance(plan, TensorPlan) else plan
        styles = self._checked("tensor_parallel_plan", given, tuple(STYLES))
        tied = self._tied(styles)
        if tied is not None:
            reason = f"the model's `tensor_parallel_plan()` cuts {tied}, whose weight another submodule shares"
            self.missing |= {"tensor_parallel_plan": reason, "sequence": reason}
            return {}, {}
        if "sequence" not in styles.values():
            self.missing["sequence"] = PIECES["sequence"]
        return styles, sizes

    def _tied(self, styles: Mapping[str, str]) -> str | None:
        """A module of the plan with a parameter that it does not hold alone: cutting it would part the two."""
        holders: dict[int, set[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            holders.setdefault(id(parameter), set()).add(name.rpartition(".")[0])
        shared = {name for modules in holders.values() if len(modules) > 1 for name in modules}
        return next((name for name in styles if name in shared), None)

    def _experts(self) -> list[str]:
        if self._offered("expert_modules") is None:
            return []
        names = [str(name) for name in self._call("expert_modules")]
        for name in names:
            self._submodule("expert_modules", name)
        return names

    def cut(self) -> None:
        """Make the first and the last stage, note what they hold and what crosses between them."""
        if self._offered("stage") is None:
            return
        if inspect.ismethod(getattr(self.model, "loss", None)):
            self.missing["stage"] = "the model's `loss` belongs to the whole model; a stage needs it as a static method"
            return
        if not self.blocks:
            self.missing["stage"] = PIECES["blocks"]
            return
        layers = self.spec.layers
        parts = [self._call("stage", True, range(1), layers == 1)]
        if layers > 1:
            parts.append(self._call("stage", False, range(layers - 1, layers), True))
        held = [self.names_in(part) for part in parts]
        inner = {name for block in self.blocks for name in self.names_in(block)}
        self.first = tuple(name for name in held[0] if name not in inner)
        self.last = tuple(name for name in held[-1] if name not in inner) if layers > 1 else ()
        both = set(self.first) & set(self.last)
        lost = set(self.names.values()) - set(self.first) - set(self.last) - inner
        if both:
            self.missing["stage"] = f"the first and the last stage share parameter {sorted(both)[0]}"
        elif lost:
            raise ConfigError(f"{self.where}: stage leaves out parameter {sorted(lost)[0]}")
        elif layers > 1:
            self._cross(parts)

    def _cross(self, parts: Sequence[nn.Module]) -> None:
        tokens = torch.zeros(1, self.spec.sequence_length, dtype=torch.int64)
        try:
            between = parts[0](tokens)
            logits = parts[1](between)
        except (Exception, SystemExit) as error:  # whatever the user's code does
            raise ConfigError(f"{self.where}: a stage fails ({type(error).__name__}: {error}); correct it") from error
        for name, tensor, wanted in (("first", between, None), ("last", logits, self.spec.vocabulary)):
            if not isinstance(tensor, torch.Tensor) or (wanted is not None and tensor.shape[-1] != wanted):
                raise ConfigError(f"{self.where}: the {name} stage does not return one tensor of the right shape")
        self.boundary = tuple(between.shape[1:])

    def tensor_modules(self, seen: Seen, repeated: Mapping[str, tuple[int, int]]) -> Iterator[TensorModule]:
        """The plan's entries with their sizes."""
        inputs = [name for name, style in self.styles.items() if style.startswith("input")]
        for name, style in self.styles.items():
            self._require_called("tensor_parallel_plan", name, seen)
            entered, finished = repeated.get(name, (0, 0))
            yield TensorModule(
                name=name,
                style=style.partition(":")[0],
                inputs=seen.inputs[name][0].numel() if seen.inputs[name] else 0,
                outputs=seen.outputs[name].numel(),
                shared=style == "colwise" and any(name.startswith(f"{outer}.") for outer in inputs),
                entered=entered,
                finished=finished,
            )

    def attention_cores(self, seen: Seen, repeated: Mapping[str, tuple[int, int]]) -> Iterator[AttentionCore]:
        """The sequence-parallel plan's attention with its shapes."""
        for name in (name for name, style in self.sequence.items() if style == "attention"):
            self._require_called("sequence_parallel_plan", name, seen)
            tensors = [*seen.inputs[name][:3], seen.outputs[name]]
            if len(tensors) != 4 or any(tensor.dim() != 4 for tensor in tensors):
                raise ConfigError(f"{self.where}: {name} is not called with query, key, value of four dimensions")
            query, key, value, output = (tuple(tensor.shape[1:]) for tensor in tensors)
            again = repeated.get(name, (0, 0))[1]
            yield AttentionCore(name=name, query=query, key=key, value=value, output=output, again=again)

    def expert_modules(self, seen: Seen, repeated: Mapping[str, tuple[int, int]]) -> Iterator[ExpertModule]:
        """The stacks of experts with what is sent to them."""
        for name in self.experts:
            self._require_called("expert_modules", name, seen)
            shape = tuple(seen.inputs[name][0].shape[1:]) if seen.inputs[name] else ()
            module = self.model.get_submodule(name)
            stacked = all(parameter.shape[0] == shape[0] for parameter in module.parameters()) if shape else False
            if len(shape) != 3 or tuple(seen.outputs[name].shape[1:]) != shape or not stacked:
                raise ConfigError(
                    f"{self.where}: {name} does not turn [samples, experts, capacity, hidden] into the same shape, "
                    "with one entry per expert in dimension 0 of its parameters"
                )
            again = repeated.get(name, (0, 0))[1]
            yield ExpertModule(name=name, dispatched=shape, parameters=tuple(self.names_in(module)), again=again)

    def _require_called(self, piece: str, name: str, seen: Seen) -> None:
        if name not in seen.outputs:
            raise ConfigError(f"{self.where}: {piece}: {name} is not called in forward")
