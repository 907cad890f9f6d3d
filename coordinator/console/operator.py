"""The operator's side of the protocol: each request to a coordinator is a method.

Operators may share a name and so an inbox: answers are identified by the ticket of their request.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self, TypeVar

import msgspec

from coordinator.console.coordinator_client import ANSWER_TIMEOUT, CoordinatorClient
from coordinator.releases.file import ReleaseFile
from sojourn.errors import ConfigError, JobError, LinkError
from sojourn.links.link import Link
from sojourn.links.settings import BrokerSettings
from sojourn.protocol.mandates import KitDetails, ReadKit, SignedMandate, SignedWithdrawal, SignJob, WithdrawJob
from sojourn.protocol.operator_messages import (
    AwaitChange,
    Changed,
    Continue,
    Export,
    Fleet,
    FleetChange,
    FleetDevice,
    FleetTopic,
    ForgetDevice,
    Inspect,
    InspectFleet,
    Jobs,
    ReadJob,
    Remove,
    Removed,
    Stop,
    Submit,
    VisitNote,
)
from sojourn.protocol.operators import AuditEntry, InspectAudit
from sojourn.protocol.registry import OperatorRequest
from sojourn.protocol.release import BlobRef, Card, DeviceView, HealthRules, LineView, SignedOrder
from sojourn.protocol.release_messages import (
    InspectReleases,
    MakeRelease,
    ReadCard,
    Releases,
    Rollout,
    Steer,
)
from sojourn.protocol.wire import JobView
from sojourn.text import cleaned

if TYPE_CHECKING:
    from coordinator.releases.making import Wanted
    from sojourn.protocol.signing import Signer

_T = TypeVar("_T")
MAX_PAGES = 10_000
"""Maximum pages of an answer, more than a coordinator stores, in case it always announces another one."""
EXPORT_TIMEOUT = 300.0
"""Seconds for an export, for which the model is built and checked."""
RELEASE_TIMEOUT = 900.0
"""Seconds for a release, which is compared with torch and measured on the whole test set."""
ROLLOUT_TIMEOUT = 60.0
"""Seconds for a coordinator to fetch the next part of a release, or to report that the rollout begins."""


class ExportedModel(NamedTuple):
    """A model as ONNX, with its accuracy and its round."""

    model: bytes
    accuracy: float
    round: int


class Operator:
    """An operator's connection to a coordinator, open during the `with` block."""

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
        """The command-line options that reach the same coordinator."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def interrupt(self) -> None:
        """Wake up the thread that waits for a change; may be called from any thread."""
        self._client.interrupt()

    def signer(self, key: Path | None) -> Signer:
        """Return the key in this file, or the operator's own; raises ConfigError if neither is given."""
        from sojourn.protocol.signing import Signer  # noqa: PLC0415  # needed only for signing

        if key is None and self._signer is None:
            raise ConfigError("name the key to sign with: --key FILE, or --operator-key (SOJOURN_OPERATOR_KEY)")
        return Signer.load(key) if key is not None else self._signer  # type: ignore[return-value]

    def audit(self, after: int = 0) -> list[AuditEntry]:
        """Return the coordinator's audit log after an entry number."""
        found: list[AuditEntry] = []
        for _ in range(MAX_PAGES):
            newest = found[-1].number if found else after
            page = self._client.ask(InspectAudit(_ticket(), newest))
            found += page.entries
            if not page.more or not page.entries:
                break
        return found

    def command(self, words: str) -> str:
        """Return a command to suggest, with the connection options of this one."""
        return f"sojourn {words}{self.flags}"

    def jobs(self, timeout: float = ANSWER_TIMEOUT) -> tuple[JobView, ...]:
        """Return all jobs, without their history."""
        return self._ask_jobs(Inspect(_ticket()), timeout)

    def job(self, name: str, since: int = 0, timeout: float = ANSWER_TIMEOUT) -> JobView:
        """Return one job, with at most a hundred rounds of its history from `since` on."""
        return self._ask_jobs(Inspect(_ticket(), name, since), timeout)[0]

    def submit(self, text: str) -> JobView:
        """Queue the job in a TOML text."""
        return self._ask_jobs(Submit(_ticket(), text))[0]

    def stop(self, name: str) -> JobView:
        """Stop a job."""
        return self._ask_jobs(Stop(_ticket(), name))[0]

    def continue_job(
        self, name: str, rounds: int | None = None, target: float | str | None = None, devices: int | None = None
    ) -> JobView:
        """Change a job's total rounds, target (0: none) or required devices, and continue it if it is over.

        A target is an accuracy, or a metric with a number (`rmse <= 0.5`).
        """
        share = target if isinstance(target, float) else None
        goal = target if isinstance(target, str) else ""
        return self._ask_jobs(Continue(_ticket(), name, rounds or None, share, goal, devices or None))[0]

    def remove(self, name: str) -> Removed:
        """Remove a job that is over, with its models."""
        return self._client.ask(Remove(_ticket(), name))

    def job_file(self, name: str) -> tuple[str, str]:
        """Return the text of a job's file, and the coordinator's version."""
        version = self._client.ask(Inspect(_ticket(), name)).version
        return self._client.ask(ReadJob(_ticket(), name)).text, version

    def kit(self, name: str) -> tuple[KitDetails, bytes]:
        """Return a job's kit: its description and its bytes."""
        details = self._client.ask(ReadKit(_ticket(), name))
        return details, self._client.fetch(details.kit)

    def sign(self, mandate: SignedMandate) -> JobView:
        """Let the coordinator send a job to devices with this mandate."""
        return self._ask_jobs(SignJob(_ticket(), mandate))[0]

    def withdraw(self, withdrawal: SignedWithdrawal) -> tuple[JobView, ...]:
        """End a job, and revoke its mandates on all devices."""
        return self._ask_jobs(WithdrawJob(_ticket(), withdrawal))

    def export(self, name: str, which: int | Literal["best"] | None = None) -> ExportedModel:
        """Return the model of a job after a round, by default the newest, as ONNX."""
        number = self._round(name, which)  # fails at once if the round is missing, before the slow export
        answer = self._client.ask(Export(_ticket(), name, number), EXPORT_TIMEOUT)
        return ExportedModel(self._client.fetch(answer.model), answer.accuracy, answer.round)

    def make_release(self, job: str, wanted: Wanted, which: int | Literal["best"] | None = None) -> ReleaseFile:
        """Have the coordinator make a release of a job's model after a round, by default the newest."""
        from coordinator.releases.file import release_from_blobs  # noqa: PLC0415  # needed only for releases
        from coordinator.releases.making import QUANTILE  # noqa: PLC0415

        number = self._round(job, which)
        request = MakeRelease(
            _ticket(), job, wanted.line, wanted.version, wanted.encoding, wanted.notes, wanted.max_loss, number,
            None if wanted.quantile == QUANTILE else wanted.quantile,
        )  # fmt: skip
        answer = self._client.ask(request, RELEASE_TIMEOUT)
        card, graph = self._client.fetch(answer.card), self._client.fetch(answer.graph)
        return release_from_blobs(card, graph, f"the release of {job}")

    def releases(self, line: str | None = None) -> tuple[LineView, ...]:
        """Return all model lines, or one line with its devices if it exists."""
        return self._client.ask(InspectReleases(_ticket(), line)).lines

    def whole_line(self, line: str) -> LineView | None:
        """Return a model line with all its devices, fetched page by page."""
        found: dict[str, DeviceView] = {}
        for _ in range(MAX_PAGES):
            views = self._client.ask(InspectReleases(_ticket(), line, len(found) or None)).lines
            if not views:
                return None
            known = len(found)
            found |= {each.device: each for each in views[0].devices}
            if len(found) in (known, sum(views[0].counts.values())):
                break
        return msgspec.structs.replace(views[0], devices=tuple(found.values()))

    def card(self, line: str, version: int) -> tuple[Card, BlobRef]:
        """Return the card of a release that the coordinator has, and a reference to its graph."""
        from coordinator.releases.file import read_card  # noqa: PLC0415  # needed only for cards

        details = self._client.ask(ReadCard(_ticket(), line, version))
        return cleaned(read_card(self._client.fetch(details.card), f"the release {line} {version}")), details.graph

    def changed(self, since: int, timeout: float = ANSWER_TIMEOUT) -> Changed:
        """Return what changed after a mark: at once if something did, otherwise when something does."""
        return self._client.ask(AwaitChange(_ticket(), since), timeout)

    def changed_unless(
        self, since: int, stop: Callable[[], bool], timeout: float, *, devices: bool = False
    ) -> Changed | None:
        """Like `changed`, but None once `stop` returns True, checked after `interrupt`; can include changed devices."""
        return self._client.ask_unless(AwaitChange(_ticket(), since, devices), stop, timeout)

    def devices(self, device: str | None = None, since: int | None = None) -> tuple[list[FleetDevice], float]:
        """Return every known device, or one with all that it offers, and the time of the coordinator's clock.

        since: only devices that changed after this mark (`changed`).
        """
        pages = list(self._fleet("devices", device, since=since))
        return [it for page in pages for it in page.devices], pages[-1].now

    def forget_device(self, device: str) -> FleetDevice:
        """Make the coordinator forget an offline device; returns its last state."""
        return self._client.ask(ForgetDevice(_ticket(), device)).devices[0]

    def changes(self, device: str | None = None, last: int | None = None) -> list[FleetChange]:
        """Return the last stored connections and disconnections, the oldest first."""
        return _oldest_first((page.changes for page in self._fleet("changes", device)), last)

    def visits(self, device: str | None = None, job: str | None = None, last: int | None = None) -> list[VisitNote]:
        """Return the last stored visits, the oldest first."""
        return _oldest_first((page.visits for page in self._fleet("visits", device, job)), last)

    def _fleet(
        self, about: FleetTopic, device: str | None = None, job: str | None = None, since: int | None = None
    ) -> Iterator[Fleet]:
        """Yield the pages of an answer about the fleet, the newest first."""
        after = ""
        for _ in range(MAX_PAGES):
            page = self._client.ask(InspectFleet(_ticket(), about, device, job, after, since))
            yield page
            if not page.next:
                return
            after = page.next

    def steer(self, line: str, action: Literal["pause", "resume", "rollback"]) -> LineView:
        """Pause, resume or roll back the rollout of a line."""
        return self._ask_line(Steer(_ticket(), line, action))

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
        """Start a rollout; serves the release's blobs until the coordinator has fetched them."""
        graph, card = self._client.offer(release.graph, release.card_bytes)
        request = Rollout(_ticket(), forward, back, graph, card, tuple(stages), rules, undo)
        return self._ask_line(request, ROLLOUT_TIMEOUT)

    def _round(self, name: str, which: int | Literal["best"] | None) -> int | None:
        """Return the number of a round; None for the newest."""
        models = self.job(name).models
        if which != "best":
            return which
        if models is None or models.best is None:
            raise JobError(f"no round of job {name!r} was measured, so none is the best: name one with --round")
        return models.best

    def _ask_jobs(self, request: OperatorRequest[Jobs], timeout: float = ANSWER_TIMEOUT) -> tuple[JobView, ...]:
        answer = self._client.ask(request, timeout)
        if not (answer.jobs or isinstance(request, Inspect)):
            raise LinkError(f"coordinator {self._client.cloud.name!r} answered without a job")
        return answer.jobs

    def _ask_line(self, request: OperatorRequest[Releases], timeout: float = ANSWER_TIMEOUT) -> LineView:
        answer = self._client.ask(request, timeout)
        if not answer.lines:
            raise LinkError(f"coordinator {self._client.cloud.name!r} answered without a model line")
        return answer.lines[0]


def _oldest_first(pages: Iterable[tuple[_T, ...]], last: int | None) -> list[_T]:
    return list(islice(chain.from_iterable(pages), last))[::-1]


def _ticket() -> str:
    return secrets.token_hex(8)
