"""What is known of joining, beside a fleet's members: who was invited, who asks, and who was at the door last.

Everything in it is bounded by what operators did: a request needs an invitation, or a member whose key signed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from sojourn.errors import ConfigError
from sojourn.protocol.limits import Label, Moment, Name
from sojourn.store.files import write_private

if TYPE_CHECKING:
    from pathlib import Path

JOINING_FILE = "joining.json"
MOST_INVITATIONS = 200
"""That have not ended."""
MOST_USES = 1_000
"""Of one invitation."""
REMEMBERED_SECONDS = 7 * 86_400.0
"""How long an answered request, or an invitation that has ended, is kept: a device may have been switched off."""


class Invitation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who may join with a token that was given away, and until when."""

    made: Moment
    ends: Moment
    uses: int
    """How many devices may still use it."""
    name: str = ""
    """What the one device is called that may use it."""
    prefix: str = ""
    """How the names begin that its devices are given, one after another."""
    authorised: bool = False
    """Whether who uses it is accepted at once."""
    replaces: bool = False
    """Whether the name may be a member's, whose keys end with it."""
    data: str = ""
    """Where a device that uses it has its data."""


class JoinRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node that asks to be let in, and what became of it."""

    name: Name
    node_key: str
    request: bytes
    """For a certificate."""
    asked: Moment
    about: Label
    invitation: str = ""
    """By which invitation; empty for a member whose certificate has ended."""
    replaces: bool = False
    data: str = ""
    state: Literal["waiting", "accepted", "rejected"] = "waiting"
    answered: Moment = 0.0
    certificate: str = ""

    @property
    def returns(self) -> bool:
        """Whether it is of a member that was away for too long."""
        return not self.invitation


class LastSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stamp that a member brings to the door next time; `doubted`: since when two seem to have its keys."""

    stamp: bytes
    at: Moment
    doubted: str = ""


class Joining(msgspec.Struct, frozen=True):
    """The file `joining.json`."""

    invitations: dict[str, Invitation] = {}
    """By what `invitation_id` makes of their secrets, which are kept nowhere."""
    requests: dict[str, JoinRequest] = {}
    """By the public key of who asks."""
    seen: dict[Name, LastSeen] = {}
    """By the names of members."""

    @property
    def waiting(self) -> list[JoinRequest]:
        """The requests that an operator has to answer, oldest first."""
        return [each for each in self.requests.values() if each.state == "waiting"]

    def with_request(self, request: JoinRequest) -> Joining:
        """The same with a request, in place of an earlier one of the same key."""
        return msgspec.structs.replace(self, requests={**self.requests, request.node_key: request})

    def with_invitation(self, known: str, invitation: Invitation) -> Joining:
        """The same with an invitation, or another state of it."""
        return msgspec.structs.replace(self, invitations={**self.invitations, known: invitation})

    def with_seen(self, name: str, seen: LastSeen) -> Joining:
        """The same with what is known of a member's last visit to the door."""
        return msgspec.structs.replace(self, seen={**self.seen, name: seen})

    def unseen(self, name: str) -> Joining:
        """The same without the stamp of a member: who comes next under its name sets another."""
        return msgspec.structs.replace(self, seen={key: each for key, each in self.seen.items() if key != name})

    def without(self, name: str) -> Joining:
        """The same without anything of a member that was revoked or removed."""
        requests = {key: each for key, each in self.requests.items() if each.name != name}
        return msgspec.structs.replace(self.unseen(name), requests=requests)

    def tidied(self, now: float) -> Joining:
        """The same without what nobody will ask for any more."""
        past = now - REMEMBERED_SECONDS
        return msgspec.structs.replace(
            self,
            invitations={key: each for key, each in self.invitations.items() if each.ends > past},
            requests={
                key: each for key, each in self.requests.items() if each.state == "waiting" or each.answered > past
            },
        )


def read(folder: Path) -> Joining:
    """What a fleet's folder says of joining; nothing, where nobody was ever invited."""
    path = folder / JOINING_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Joining)
    except FileNotFoundError:
        return Joining()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path} is damaged ({error}): move it away; invitations have to be made anew") from error


def write(folder: Path, joining: Joining) -> None:
    """Write it, in one step."""
    write_private(folder / JOINING_FILE, msgspec.json.encode(joining))
