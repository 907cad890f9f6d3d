"""A model line as a person sees it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from coordinator.machine.paging import first_page
from sojourn.protocol.release import BAD, DeviceView, LineView, complaint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from coordinator.rollout_records import LineState
    from sojourn.protocol.release_messages import ReleaseReport


def view_of(
    line: LineState, newest: Mapping[str, ReleaseReport], present: AbstractSet[str], *, devices: bool
) -> LineView:
    """The rollout and, if asked for, its devices: those that are not well first, as many as fit."""
    each = [_device(line, device, newest.get(device), device in present) for device in sorted(line.members)]
    forward, back, serves = line.forward.read, line.back.read, line.serves.read
    each.sort(key=lambda view: (not _unwell(view, line), view.stage))
    detail = line.detail[: 2000 if devices else 200]
    return LineView(
        line=line.line, status=line.status, detail=detail, serial=back.serial, version=forward.version,
        before=back.version, serves=serves.version, goods=serves.goods, stages=line.stages, stage=line.stage,
        counts=dict(Counter(view.state for view in each)), devices=first_page(each) if devices else (),
    )  # fmt: skip


def _device(line: LineState, device: str, report: ReleaseReport | None, present: bool) -> DeviceView:
    stage = line.members[device]
    if report is None or report.serial < line.cargo.read.serial:
        state = "told" if present else "away"
        return DeviceView(device, stage, report.serial if report else 0, report.version if report else 0, state)
    detail = report.detail or (report.health and complaint(report.health, line.rules)) or ""
    return DeviceView(device, stage, report.serial, report.version, report.state, detail[:200], report.health)


def _unwell(view: DeviceView, line: LineState) -> bool:
    return view.state in BAD or bool(view.health and complaint(view.health, line.rules))
