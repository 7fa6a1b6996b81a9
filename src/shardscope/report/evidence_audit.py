"""The evidence on plans: who is to blame where calls differ from the plan, and the bytes that the kernel counted."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from shardscope.report.markdown import code, megabytes, signed_percent, text, whole
from shardscope.selection.audit_claims import Suspect
from shardscope.selection.claims import StrategyResult

__all__ = ["suspect_lines", "wire_table"]

Rows = tuple[list[Any], list[list[Any]]]
LISTED = 6  # names of parameters
_VERDICTS = {
    "agrees": "agrees within 2 %",
    "differs": Markup("**differs by more than 2 %**"),
    "polluted": "not checked: others used the loopback meanwhile",
    "small": "not judged: below 8 MB per step headers weigh too much",
}
_CHANGES = {
    "split": "Reduce or send them in one piece: flatten them into one buffer, once per step, before the optimizer "
    "reads them (SequenceParallel's norm gradients are partial sums; ZeroRedundancyOptimizer takes "
    "parameters_as_bucket_view=True).",
    "shared_input": "Give them one replicated input in common (PrepareModuleInput on the module that holds them, with "
    "use_local_output=False), so that its gradient is summed once.",
    "more": "Look for a second consumer of the same tensor, or a micro-batch that is synchronised too early (no_sync).",
    "fewer": "Look at what keeps it from one use to the next (reshard_after_forward, on the root too), or is unused.",
    "resized": "Look at padding and at the data type of this piece.",
    "tensors": "Look at what these parameters are wrapped in; the plan does not send them.",
    "other_kind": "Look at the layouts (placements) on both sides of it: they decide the kind.",
    "unknown": "Which layer sends it cannot be told from sizes and order; the trace shows its place.",
}


def suspect_lines(rows: Sequence[StrategyResult]) -> list[Markup]:
    """One line per cause, in the order of the strategies."""
    return [
        code(row.name) + Markup(", ") + kind_name(audited.kind) + Markup(f" ({audited.axis} axis): ") + _line(suspect)
        for row in rows
        for audited in row.audit
        for suspect in audited.suspects
    ]


def kind_name(kind: object) -> Markup:
    """The name of a kind in English."""
    return Markup(str(kind).replace("_", "-") if kind != "send_receive" else "send/receive")


def _line(suspect: Suspect) -> Markup:
    count, size = whole(suspect.count), whole(suspect.each_bytes)
    what = text(suspect.what) if suspect.what is not None else Markup("")
    phase = Markup(f" {_PHASES[suspect.phase]}") if suspect.phase is not None else Markup("")
    if suspect.cause == "split":
        # Sizes differ from tensor to tensor; the largest is named.
        body = Markup("“") + what + Markup(f"” went out tensor by tensor: {count} calls{phase}")
        body += Markup(f", each tensor {suspect.times} times" if (suspect.times or 1) > 1 else "")
        body += Markup(" (") + _parameters(suspect) + Markup(")")
    elif suspect.cause == "fewer":
        body = Markup("“") + what + Markup(f"” is missing {count} times ({size} B each)")
    elif suspect.cause == "resized":
        body = Markup("“") + what + Markup(f"” has {size} B per call ({count} calls)")
    else:
        body = Markup(f"{count} calls too many of {size} B{phase}")
        if suspect.per is not None:
            body += Markup(f", {suspect.per_count} per ") + text(suspect.per)
        if suspect.what is not None:
            body += Markup(", the size of “") + what + Markup("”")
        if suspect.parameters:
            body += Markup(" (") + _parameters(suspect) + Markup(")")
    return body + Markup(". ") + text(_CHANGES[suspect.cause])


_PHASES = {"forward": "in forward", "backward": "in backward", "after backward": "after backward, in the optimizer"}


def _parameters(suspect: Suspect) -> Markup:
    names = suspect.parameters
    shown = Markup(", ").join(code(name) for name in names[:LISTED])
    more = Markup(f" and {len(names) - LISTED} more") if len(names) > LISTED else Markup("")
    open_ = suspect.cause in ("split", "tensors", "other_kind") and not suspect.exact
    return (Markup("of that size are ") if open_ else Markup("")) + shown + more


def wire_table(rows: Sequence[StrategyResult]) -> Rows:
    """Per step: bytes by this backend's algorithms, and as counted on the loopback, TCP and IP headers included."""
    header = ["Strategy", "Sent by the algorithms, MB", "Counted on the loopback, MB", "Difference", "Verdict"]
    found: list[list[Any]] = []
    for row in rows:
        if row.wire is not None:
            found.append(
                [
                    code(row.name),
                    megabytes(row.wire.expected_bytes),
                    megabytes(row.wire.counted_bytes),
                    signed_percent(row.wire.difference) + Markup(" %"),
                    _VERDICTS[row.wire.verdict],
                ]
            )
    return header, found
