"""The outline of a user's own model, found on the meta device: one forward and backward of one sample, shapes only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shardscope.errors import ConfigError
from shardscope.workload.model import build_model
from shardscope.workload.offer import Offer, Seen
from shardscope.workload.outline import Outline
from shardscope.workload.pieces import loss_of
from shardscope.workload.spec import WorkloadSpec

__all__ = ["outline_on_meta"]


def outline_on_meta(spec: WorkloadSpec) -> Outline:
    """Build the model without memory, run one sample through it without arithmetic, and note what there is to know.

    Raises ConfigError, one line, for a model that no strategy could train.
    """
    plain = msgspec.structs.replace(spec, recompute=False)
    with torch.device("meta"):
        model = build_model(plain)
        facts = Offer(plain, model)
        seen = _run(plain, model, facts.watched(), facts.blocks)
        if spec.recompute:
            facts.require_blocks()
            again = _run(spec, build_model(spec), facts.watched(), None)
        else:
            again = None
        facts.cut()
    repeated: Mapping[str, tuple[int, int]] = {} if again is None else again.repeated
    return Outline(
        parameters={name: tuple(parameter.shape) for name, parameter in model.named_parameters()},
        blocks=tuple(tuple(facts.names_in(block)) for block in facts.blocks),
        gradient_order=tuple((again or seen).order),
        first=facts.first,
        last=facts.last,
        boundary=facts.boundary or seen.boundary,
        flops_per_step=None if seen.flops is None else seen.flops * spec.global_batch,
        block_flops=None if seen.block_flops is None else seen.block_flops * spec.global_batch,
        tensor=tuple(facts.tensor_modules(seen, repeated)),
        tensor_styles=facts.styles,
        tensor_sizes=facts.sizes,
        attention=tuple(facts.attention_cores(seen, repeated)),
        positions=tuple(name for name, style in facts.sequence.items() if style == "positions"),
        experts=tuple(facts.expert_modules(seen, repeated)),
        missing=facts.missing,
        saved=seen.saved,
    )


def _run(spec: WorkloadSpec, model: nn.Module, watched: Mapping[str, str], blocks: Sequence[nn.Module] | None) -> Seen:
    """Forward and backward of one sample. watched: name of a submodule → name of the argument that is its input."""
    seen, where = Seen(), f"workload {spec.name}: model {spec.model}"
    backward = [False]
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            raise ConfigError(f"{where}: parameter {name} is frozen; every strategy trains all parameters")
        if str(parameter.dtype) != f"torch.{spec.dtype}":
            raise ConfigError(f"{where}: parameter {name} is {parameter.dtype}, the workload says dtype: {spec.dtype}")
        hooked: Any = parameter  # torch's annotation of the hook is missing
        hooked.register_post_accumulate_grad_hook(lambda _parameter, name=name: seen.order.append(name))
    for name, argument in watched.items():
        _watch(model.get_submodule(name), name, argument, seen, backward)
    tokens = torch.zeros(1, spec.sequence_length, dtype=torch.int64)
    counter = _Counter()
    with counter, _block_observer(blocks, counter, seen):
        try:
            logits = model(tokens)
            shape = tuple(logits.shape)
        except (Exception, SystemExit) as error:  # whatever the user's code does
            raise ConfigError(f"{where}: forward fails ({type(error).__name__}: {error}); correct it") from error
        wanted = (1, spec.sequence_length, spec.vocabulary)
        if shape != wanted:
            raise ConfigError(
                f"{where}: forward turns tokens {list(tokens.shape)} into {list(shape)}, not into logits {list(wanted)}"
            )
        forward = counter.flops()
        try:
            loss = loss_of(model)(logits, tokens)
            backward[0] = True
            torch.autograd.backward(loss)
        except (Exception, SystemExit) as error:
            raise ConfigError(f"{where}: loss or backward fails ({type(error).__name__}: {error})") from error
    unused = [name for name, _ in model.named_parameters() if name not in seen.order]
    if unused:
        raise ConfigError(f"{where}: parameter {unused[0]} gets no gradient; leave out what is not trained")
    seen.flops = counter.flops()
    if seen.block_flops is not None and forward and seen.flops and blocks:
        seen.block_flops = round(seen.block_flops * seen.flops / forward / len(blocks))
    return seen


def _watch(module: nn.Module, name: str, argument: str, seen: Seen, backward: list[bool]) -> None:
    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if backward[0]:
            entered, finished = seen.repeated.get(name, (0, 0))
            seen.repeated[name] = (entered + 1, finished)
        else:
            given = [kwargs[argument]] if argument in kwargs else [x for x in args if isinstance(x, torch.Tensor)]
            seen.inputs[name] = given

    def leave(_module: nn.Module, _args: Any, output: Any) -> None:
        if backward[0]:
            entered, finished = seen.repeated.get(name, (0, 0))
            seen.repeated[name] = (entered, finished + 1)
        else:
            seen.outputs[name] = output[0] if isinstance(output, (tuple, list)) else output

    module.register_forward_pre_hook(enter, with_kwargs=True)
    module.register_forward_hook(leave)


class _Counter:
    """FLOPs by torch's counter, attention unfused so that it sees the products; None where it fails."""

    def __init__(self) -> None:
        self._mode: Any = FlopCounterMode(display=False)
        self._unfused = sdpa_kernel(SDPBackend.MATH)

    def __enter__(self) -> _Counter:
        self._unfused.__enter__()
        self._mode.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._mode.__exit__(*error)
        self._unfused.__exit__(*error)

    def flops(self) -> int | None:
        return int(self._mode.get_total_flops()) or None


@contextmanager
def _block_observer(blocks: Sequence[nn.Module] | None, counter: _Counter, seen: Seen) -> Iterator[None]:
    """Forward FLOPs of the blocks, the shape that leaves the first one, and what they keep for the backward."""
    if not blocks:
        yield
        return
    total, started, inside = [0], [0], [False]
    kept: dict[int, int] = {}
    parameters = {parameter.untyped_storage()._cdata for block in blocks for parameter in block.parameters()}

    def enter(_module: nn.Module, _args: Any) -> None:
        started[0], inside[0] = counter.flops() or 0, True

    def leave(_module: nn.Module, _args: Any, output: Any) -> None:
        total[0] += (counter.flops() or 0) - started[0]
        inside[0] = False
        first = output[0] if isinstance(output, (tuple, list)) else output
        if isinstance(first, torch.Tensor) and not seen.boundary:
            seen.boundary = tuple(first.shape[1:])

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if inside[0] and storage._cdata not in parameters:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    handles = [block.register_forward_pre_hook(enter) for block in blocks]
    handles += [block.register_forward_hook(leave) for block in blocks]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield
    for handle in handles:
        handle.remove()
    seen.block_flops = total[0] or None
    seen.saved = round(sum(kept.values()) / len(blocks))
