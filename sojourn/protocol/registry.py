"""The declarations of each message class: the roles between which it travels, and the roles that may request it.

A new operator request is a class with its answer, its roles and its fields; a handler in the coordinator's table
(`coordinator.machine.coordinator`); a method of `coordinator.console.operator.Operator`; and a section of
`docs/protocol.md`. Everything else is read from the class.
"""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar, Generic, Literal, TypeVar, get_args

import msgspec

from sojourn.protocol.limits import LABEL, Name
from sojourn.protocol.topics import Role

Routes = frozenset[tuple[Role, Role]]
"""The roles of senders and receivers."""
TO_DEVICE: Routes = frozenset({("edge", "device")})
FROM_DEVICE: Routes = frozenset({("device", "edge")})
TO_SITE: Routes = frozenset({("cloud", "edge")})
FROM_SITE: Routes = frozenset({("edge", "cloud")})
OPERATORS: Routes = frozenset({("cloud", "cloud")})
"""Between operators and their coordinator."""
STATE_TOPIC: Routes = frozenset()
"""A presence message, which has no inbox."""

OperatorRole = Literal["viewer", "submitter", "releaser", "owner"]
Roles = tuple[OperatorRole, ...]
ANY_ROLE: Roles = get_args(OperatorRole)
SUBMITTERS: Roles = ("submitter", "owner")
RELEASERS: Roles = ("releaser", "owner")


class Message(msgspec.Struct, frozen=True, tag_field="kind"):
    """One kind of message; the tag of its class is its kind on the wire."""

    routes: ClassVar[Routes]
    """The roles of its senders and receivers."""


class Answer(Message, frozen=True):
    """A coordinator's answer to an operator."""

    routes = OPERATORS
    verbatim: ClassVar[bool] = False
    """Whether its texts are compared or written to files unchanged; otherwise they are cleaned for a terminal."""

    ticket: Name
    """The ticket of the request."""


_Answer_co = TypeVar("_Answer_co", bound=Answer, covariant=True)


class OperatorRequest(Message, Generic[_Answer_co], frozen=True):
    """An operator's request to a coordinator; the answer has the type in brackets, or is `refused`."""

    routes = OPERATORS
    roles: ClassVar[Roles]
    """The operators who may make it."""

    ticket: Name
    """Chosen by the operator, to identify the answer and repeats."""

    @classmethod
    def answer(cls) -> type[_Answer_co]:
        """Return the type of its answer."""
        form: type[_Answer_co] = get_args(vars(cls)["__orig_bases__"][0])[0]
        return form

    @property
    def audited(self) -> bool:
        """Whether it changes something or exports a model: then it has an entry in the audit log."""
        return self.roles != ANY_ROLE

    @property
    def subject(self) -> str:
        """What it is about: the job, if it names one."""
        return str(getattr(self, "job", None) or "")

    @property
    def what(self) -> str:
        """A short description of the request, as the operator signs it and as it is in the audit log."""
        return f"{self.__struct_config__.tag} {self.subject}".strip()[:LABEL]


def by_kind(*modules: ModuleType) -> dict[str, type[Message]]:
    """Return the messages that these modules define, by kind."""
    forms = (form for module in modules for form in vars(module).values() if _defined_in(module, form))
    return {str(form.__struct_config__.tag): form for form in forms}


def _defined_in(module: ModuleType, form: object) -> bool:
    return isinstance(form, type) and issubclass(form, Message) and form.__module__ == module.__name__
