"""The operator's side: every question that a person asks a coordinator, as a method.

Other operators may share the name, and so the inbox: answers are known by the ticket of the question.
"""

from __future__ import annotations

import secrets
from itertools import chain, islice
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from coordinator.console.coordinator_client import PATIENCE, CoordinatorClient
from sojourn.errors import ConfigError, JobError, LinkError
from sojourn.protocol.audit import Audit, InspectAudit
from sojourn.protocol.fleet_messages import AwaitChange, Changed, Fleet, ForgetDevice, InspectFleet
from sojourn.protocol.job_messages import Continue, JobText, ReadJob, Remove, Removed
from sojourn.protocol.mandate_messages import KitTold, ReadKit, SignJob, WithdrawJob
from sojourn.protocol.messages import Export, Exported, Inspect, Jobs, Stop, Submit
from sojourn.protocol.release_messages import (
    CardTold,
    InspectReleases,
    MakeRelease,
    ReadCard,
    ReleaseMade,
    Releases,
    Rollout,
    Steer,
)
from sojourn.text import cleaned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from types import TracebackType

    from coordinator.releases.file import ReleaseFile
    from coordinator.releases.making import Wanted
    from sojourn.links.link import Link
    from sojourn.links.settings import BrokerSettings
    from sojourn.protocol.audit import AuditEntry
    from sojourn.protocol.fleet_messages import FleetChange, FleetDevice, FleetTopic, VisitNote
    from sojourn.protocol.mandate import SignedMandate, SignedWithdrawal
    from sojourn.protocol.release import Card, DeviceView, HealthRules, LineView, Parcel, SignedOrder
    from sojourn.protocol.signing import Signer
    from sojourn.protocol.wire import JobView

_T = TypeVar("_T")
MOST_PAGES = 10_000
"""More than a coordinator remembers; one that always says that there is another is not asked for ever."""
EXPORT_PATIENCE = 300.0
"""Seconds for an export: the model is put together and checked first."""
RELEASE_PATIENCE = 900.0
"""Seconds for a release: it is compared with torch, and measured on the whole test set."""
ROLLOUT_PATIENCE = 60.0
"""Seconds for a coordinator to fetch the next piece of a release, or to say that it begins."""


class ExportedModel(NamedTuple):
    """A model as ONNX, how accurate it is, and of which round; None where an older coordinator does not say."""

    model: bytes
    accuracy: float
    round: int | None


class Operator:
    """A person's connection to a coordinator, open for as long as the `with` block."""

    def __init__(
        self,
        broker: BrokerSettings,
        *,
        fleet: str,
        cloud: str,
        name: str = "operator",
        link: Link | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._client = CoordinatorClient(broker, fleet, cloud, name, link, signer)
        self._signer = signer
        self.name = name
        self.fleet = self._client.fleet
        self.flags = ""
        """The options that reach the same coordinator, as they are typed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def interrupt(self) -> None:
        """Let whoever waits for news look up; from any thread."""
        self._client.interrupt()

    def signer(self, key: Path | None) -> Signer:
        """The key in this file, or the operator's own; ConfigError where neither is named."""
        from sojourn.protocol.signing import Signer  # noqa: PLC0415  # only who signs needs it

        if key is None and self._signer is None:
            raise ConfigError("name the key to sign with: --key FILE, or --operator-key (SOJOURN_OPERATOR_KEY)")
        return Signer.load(key) if key is not None else self._signer  # type: ignore[return-value]

    def audit(self, after: int = 0) -> list[AuditEntry]:
        """The audit log after a number, as the coordinator has it."""
        found: list[AuditEntry] = []
        for _ in range(MOST_PAGES):
            newest = found[-1].number if found else after
            page = self._client.ask(InspectAudit(_ticket(), newest), Audit, PATIENCE)
            found += page.entries
            if not page.more or not page.entries:
                break
        return found

    def command(self, words: str) -> str:
        """A command that a person may type next, with the options that were given to this one."""
        return f"sojourn {words}{self.flags}"

    def jobs(self, patience: float = PATIENCE) -> tuple[JobView, ...]:
        """All jobs, without their history."""
        return self._ask_jobs(Inspect(_ticket()), patience)

    def job(self, name: str, since: int = 0, patience: float = PATIENCE) -> JobView:
        """One job, with at most a hundred rounds of its history from one on."""
        return self._ask_jobs(Inspect(_ticket(), name, since), patience)[0]

    def submit(self, text: str) -> JobView:
        """Queue the job in a TOML text."""
        return self._ask_jobs(Submit(_ticket(), text), PATIENCE)[0]

    def stop(self, name: str) -> JobView:
        """End a job."""
        return self._ask_jobs(Stop(_ticket(), name), PATIENCE)[0]

    def go_on(
        self, name: str, rounds: int | None = None, target: float | str | None = None, devices: int | None = None
    ) -> JobView:
        """Let a job have `rounds` in all, another target (0: none), or begin with `devices`; one that is over goes on.

        A target is an accuracy, or a figure with a number (`rmse <= 0.5`).
        """
        self._of_today(name, "continue a job")
        share = target if isinstance(target, float) else UNSET
        goal = target if isinstance(target, str) else UNSET
        question = Continue(_ticket(), name, rounds or UNSET, share, goal, devices or UNSET)
        return self._ask_jobs(question, PATIENCE)[0]

    def remove(self, name: str) -> Removed:
        """Forget a job that is over, with its models."""
        self._of_today(name, "remove a job")
        return self._client.ask(Remove(_ticket(), name), Removed, PATIENCE)

    def job_file(self, name: str) -> tuple[str, str]:
        """The text of a job's file, and the coordinator's version."""
        version = self._of_today(name, "tell a job's file")
        return self._client.ask(ReadJob(_ticket(), name), JobText, PATIENCE).text, version

    def kit(self, name: str) -> tuple[KitTold, bytes]:
        """A job's kit, with what is said of it, and its bytes."""
        told = self._client.ask(ReadKit(_ticket(), name), KitTold, PATIENCE)
        return told, self._client.fetch(told.kit)

    def sign(self, mandate: SignedMandate) -> JobView:
        """Let a job go to devices with this mandate."""
        return self._ask_jobs(SignJob(_ticket(), mandate), PATIENCE)[0]

    def withdraw(self, withdrawal: SignedWithdrawal) -> tuple[JobView, ...]:
        """End a job, and its mandates on all devices."""
        return self._ask_jobs(WithdrawJob(_ticket(), withdrawal), PATIENCE)

    def export(self, name: str, which: int | Literal["best"] | None = None) -> ExportedModel:
        """The model of a job after a round, the newest unless told, as ONNX."""
        number = self._round(name, which)  # whether it is there is known at once; an export takes its time
        answer = self._client.ask(Export(_ticket(), name, number), Exported, EXPORT_PATIENCE)
        of = None if answer.round is UNSET else answer.round
        return ExportedModel(self._client.fetch(answer.model), answer.accuracy, of)

    def make_release(self, job: str, wanted: Wanted, which: int | Literal["best"] | None = None) -> ReleaseFile:
        """A release of a job's model after a round, the newest unless told, as the coordinator makes it."""
        from coordinator.releases.file import put_together  # noqa: PLC0415  # only who makes one needs it
        from coordinator.releases.making import QUANTILE  # noqa: PLC0415

        number = self._round(job, which)
        question = MakeRelease(
            _ticket(), job, wanted.line, wanted.version, wanted.encoding, wanted.notes, wanted.max_loss, number,
            UNSET if wanted.quantile == QUANTILE else wanted.quantile,
        )  # fmt: skip
        answer = self._client.ask(question, ReleaseMade, RELEASE_PATIENCE)
        card, graph = self._client.fetch(answer.card), self._client.fetch(answer.graph)
        return put_together(card, graph, f"the release of {job}")

    def releases(self, line: str | None = None) -> tuple[LineView, ...]:
        """All model lines, or one with its devices if there is one of that name."""
        return self._client.ask(InspectReleases(_ticket(), line), Releases, PATIENCE).lines

    def whole_line(self, line: str) -> LineView | None:
        """A model line with all its devices, page by page; of a coordinator before 0.9.0 with those that fit in one."""
        found: dict[str, DeviceView] = {}
        for _ in range(MOST_PAGES):
            views = self._client.ask(InspectReleases(_ticket(), line, len(found) or UNSET), Releases, PATIENCE).lines
            if not views:
                return None
            known = len(found)
            found |= {each.device: each for each in views[0].devices}
            if len(found) in (known, sum(views[0].counts.values())):
                break
        return msgspec.structs.replace(views[0], devices=tuple(found.values()))

    def card(self, line: str, version: int) -> tuple[Card, Parcel]:
        """The card of a release that the coordinator has, and which graph it is about."""
        from coordinator.releases.file import read_card  # noqa: PLC0415  # only who looks at one needs it

        told = self._client.ask(ReadCard(_ticket(), line, version), CardTold, PATIENCE)
        return cleaned(read_card(self._client.fetch(told.card), f"the release {line} {version}")), told.graph

    def changed(self, since: int, patience: float = PATIENCE) -> Changed:
        """What changed last, told at once if that was after the mark, else when something does."""
        return self._client.ask(AwaitChange(_ticket(), since), Changed, patience)

    def changed_unless(
        self, since: int, stop: Callable[[], bool], patience: float, *, devices: bool = False
    ) -> Changed | None:
        """The same; None as soon as `stop` says so, of which `interrupt` reminds. devices: tell those that changed."""
        return self._client.ask_unless(AwaitChange(_ticket(), since, devices or UNSET), stop, patience)

    def devices(self, device: str | None = None, since: int | None = None) -> tuple[list[FleetDevice], float]:
        """Every device that was ever seen, or one with all that it offers; and what the coordinator's clock says.

        since: only those that changed after this mark (`changed`).
        """
        pages = list(self._fleet("devices", device, since=since))
        return [it for page in pages for it in page.devices], pages[-1].now

    def forget_device(self, device: str) -> FleetDevice:
        """Have the coordinator forget a device that is gone; returns it as it was."""
        return self._client.ask(ForgetDevice(_ticket(), device), Fleet, PATIENCE).devices[0]

    def changes(self, device: str | None = None, last: int | None = None) -> list[FleetChange]:
        """The last comings and goings that are remembered, the oldest first."""
        return _oldest_first((page.changes for page in self._fleet("changes", device)), last)

    def visits(self, device: str | None = None, job: str | None = None, last: int | None = None) -> list[VisitNote]:
        """The last visits that are remembered, the oldest first."""
        return _oldest_first((page.visits for page in self._fleet("visits", device, job)), last)

    def _fleet(
        self, about: FleetTopic, device: str | None = None, job: str | None = None, since: int | None = None
    ) -> Iterator[Fleet]:
        """What is asked about the fleet, page by page, the newest first."""
        after, mark = "", UNSET if since is None else since
        for _ in range(MOST_PAGES):
            question = InspectFleet(_ticket(), about, device, job, after, since=mark)
            page = self._client.ask(question, Fleet, PATIENCE)
            yield page
            if not page.next:
                return
            after = page.next

    def steer(self, line: str, action: Literal["pause", "resume", "rollback"]) -> LineView:
        """Pause, resume or undo the rollout of a line."""
        return self._ask_line(Steer(_ticket(), line, action), PATIENCE)

    def rollout(
        self,
        forward: SignedOrder,
        back: SignedOrder,
        release: ReleaseFile,
        stages: Sequence[float],
        rules: HealthRules,
        *,
        undo: bool = True,
    ) -> LineView:
        """Begin to bring a release to the fleet; until the coordinator has all of it, it is served from here."""
        graph, card = self._client.offer(release.graph, release.card_bytes)
        question = Rollout(_ticket(), forward, back, graph, card, tuple(stages), rules, undo)
        return self._ask_line(question, ROLLOUT_PATIENCE)

    def _round(self, name: str, which: int | Literal["best"] | None) -> int | UnsetType:
        """The number of a round; unset for the newest, which every coordinator can make something of."""
        if which is None:
            self.job(name)
            return UNSET
        self._of_today(name, "keep models of earlier rounds")
        if which != "best":
            return which
        models = self.job(name).models
        if models is UNSET or models.best is None:
            raise JobError(f"no round of job {name!r} was measured, so that none is the best: name one with --round")
        return models.best

    def _of_today(self, name: str, what: str) -> str:
        """The version of the coordinator that has this job; JobError where it cannot know what is asked for."""
        version = self._client.ask(Inspect(_ticket(), name), Jobs, PATIENCE).version
        if version is UNSET:
            raise JobError(
                f"coordinator {self._client.cloud.name!r} is of a version before 0.4.0 and cannot {what}: update it "
                "(docs/upgrading.md)"
            )
        return version

    def _ask_jobs(
        self, question: Inspect | Submit | Stop | Continue | SignJob | WithdrawJob, patience: float
    ) -> tuple[JobView, ...]:
        answer = self._client.ask(question, Jobs, patience)
        if not (answer.jobs or isinstance(question, Inspect)):
            raise LinkError(f"coordinator {self._client.cloud.name!r} answered without a job")
        return answer.jobs

    def _ask_line(self, question: Rollout | Steer, patience: float) -> LineView:
        answer = self._client.ask(question, Releases, patience)
        if not answer.lines:
            raise LinkError(f"coordinator {self._client.cloud.name!r} answered without a model line")
        return answer.lines[0]


def _oldest_first(pages: Iterable[tuple[_T, ...]], last: int | None) -> list[_T]:
    return list(islice(chain.from_iterable(pages), last))[::-1]


def _ticket() -> str:
    return secrets.token_hex(8)
