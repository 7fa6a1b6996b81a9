"""What a model of the user's own offers. Torch-free; docs/own-model.md shows an example.

A workload names a builder, `model: package.module:builder`. It is called as `builder(spec)` with the WorkloadSpec and
returns a torch.nn.Module on the CPU, the same on every call: its random numbers come from torch's default generator,
which is seeded before. It honours `spec.layers`, `spec.vocabulary` and `spec.sequence_length`; whatever else it needs
comes from `spec.hidden`, `spec.heads` and `spec.model_options`. No dropout: every strategy must compute the same.

Required: `forward(tokens) -> logits`, int64 [samples, sequence] → [samples, sequence, vocabulary], each sample
independent of the others. Everything else is an attribute or a method that may be missing; what needs it then does not
apply, and says so:

`blocks`                  the repeated layers in order, `spec.layers` of them: a ModuleList, a ModuleDict, a sequence of
                          modules or of their names. zero2, zero3, pipelines and `recompute` need it.
`loss(outputs, targets)`  mean loss over all tokens, a static method; without it cross-entropy.
`tensor_parallel_plan()`  name of a submodule → style, or a TensorPlan; see STYLES. tensor needs it; tensor_sequence
                          also needs entries of style `sequence`.
`stage(first, layers, last)`  a module that is blocks `layers` (a range) of this model, with what comes before the first
                          block if `first` and what comes after the last if `last`, made of this model's own submodules.
                          Input: tokens if `first`, else one tensor of activations. Pipelines need it.
`sequence_parallel_plan()`  name of a submodule → `attention` (called with query, key, value, each [samples, heads,
                          sequence, size]; returns the same layout) or `positions` (returns [sequence, hidden]).
                          sequence_ulysses needs it.
`expert_modules()`        names of submodules called with [samples, experts, capacity, hidden] that return the same
                          shape and whose every parameter has one entry per expert in dimension 0. expert needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["PIECES", "SEQUENCE_STYLES", "STYLES", "TensorPlan"]

# What a model may offer → what its absence means, for the reason why a strategy does not apply.
PIECES: Mapping[str, str] = {
    "blocks": "the model offers no `blocks`",
    "stage": "the model offers no `stage(first, layers, last)` to cut it into pipeline stages",
    "tensor_parallel_plan": "the model offers no `tensor_parallel_plan()`",
    "sequence": "the model's `tensor_parallel_plan()` has no entry of style `sequence`",
    "sequence_parallel_plan": "the model offers no `sequence_parallel_plan()`",
    "expert_modules": "the model offers no `expert_modules()`: it has no mixture-of-experts layers",
}

# How tensor parallelism treats a submodule → what it is.
STYLES: Mapping[str, str] = {
    "embedding": "nn.Embedding cut by vocabulary; its outputs are summed",
    "colwise": "nn.Linear cut by output features; its output stays cut",
    "rowwise": "nn.Linear cut by input features, after a colwise one; its outputs are summed",
    "head": "nn.Linear cut by output features; its output is gathered",
    "input": "a module whose colwise submodules share its first input, so that its gradient is summed once; "
    "`input:NAME` when it is passed by keyword",
    "sequence": "a norm; with tensor_sequence it works on this rank's part of the sequence",
    "positions": "a module with one parameter `weight` [sequence, hidden] that it returns",
}

SEQUENCE_STYLES = ("attention", "positions")


@dataclass(frozen=True, kw_only=True)
class TensorPlan:
    """`styles`: name of a submodule → one of STYLES. `sizes`: what must divide evenly among the ranks, by name.

    The cut dimensions of the matrices are checked by themselves; what they consist of (attention heads) goes here.
    """

    styles: Mapping[str, str]
    sizes: Mapping[str, int] = field(default_factory=dict)
