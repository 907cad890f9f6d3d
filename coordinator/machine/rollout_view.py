"""A model line as a person sees it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from coordinator.machine.paging import ALONE, first_page
from sojourn.protocol.limits import TEXT
from sojourn.protocol.release import BAD, DeviceView, LineView, RolloutPlan, complaint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from coordinator.machine.rollout_progress import RolloutProgress
    from coordinator.rollout_records import LineState
    from sojourn.protocol.release_messages import ReleaseReport


FEW = 2
"""Turns of each line that a list of lines tells."""
NAMED = 3
"""At most this many ill devices are named, the others are counted."""


def view_of(
    line: LineState,
    newest: Mapping[str, ReleaseReport],
    present: AbstractSet[str],
    progress: RolloutProgress,
    since: int | None = None,
) -> LineView:
    """The rollout and, if asked for, its devices from one on: those that are not well first, as many as fit."""
    each = [_device(line, device, newest.get(device), device in present) for device in sorted(line.members)]
    forward, back, serves = line.forward.read, line.back.read, line.serves.read
    each.sort(key=lambda view: (not (_unwell(view, line) or view.device in line.aside), view.stage))
    alone = since is not None
    detail = _detail(line, progress)[: 2000 if alone else 200]
    return LineView(
        line=line.line, status=line.status, detail=detail, serial=back.serial, version=forward.version,
        before=back.version, serves=serves.version, goods=serves.goods, stages=line.stages, stage=line.stage,
        counts=dict(Counter(view.state for view in each)), devices=first_page(each[since:], ALONE) if alone else (),
        plan=RolloutPlan(line.rules, line.undo, tuple((line.turned or ())[0 if alone else -FEW :])),
    )  # fmt: skip


def complaints(ill: Mapping[str, str]) -> str:
    """Which devices are ill and why: a few by name, the others counted."""
    named = sorted(ill.items())[:NAMED]
    text = "; ".join(f"{device}: {why[:500]}" for device, why in named)
    return f"{text} and {len(ill) - NAMED} more" if len(ill) > NAMED else text


def _detail(line: LineState, progress: RolloutProgress) -> str:
    """Why the rollout is where it is: who complains and waits for company, and who was set aside."""
    waits = f"{complaints(progress.ill)} (others are waited for)" if line.status == "running" and progress.ill else ""
    # Of a rollout that is undone its reason names them already.
    aside = f"set aside: {complaints(line.aside)}" if line.aside and line.cargo is line.forward else ""
    return "; ".join(text for text in (line.detail, waits, aside) if text)


def _device(line: LineState, device: str, report: ReleaseReport | None, present: bool) -> DeviceView:
    stage = line.members[device]
    if report is None or report.serial < line.cargo_for(device).read.serial:
        state = "told" if present else "away"
        return DeviceView(device, stage, report.serial if report else 0, report.version if report else 0, state)
    detail = report.detail or (report.health and complaint(report.health, line.rules)) or ""
    if device in line.aside and line.cargo is line.forward:
        detail = f"set aside: {line.aside[device]}"
    return DeviceView(device, stage, report.serial, report.version, report.state, detail[:TEXT], report.health)


def _unwell(view: DeviceView, line: LineState) -> bool:
    return view.state in BAD or bool(view.health and complaint(view.health, line.rules))
