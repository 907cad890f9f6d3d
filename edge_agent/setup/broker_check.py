"""Whether a broker lets this device in: TCP, TLS, MQTT and the right to its own topics, tried once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from paho.mqtt.enums import MQTTProtocolVersion

from sojourn.links.mqtt import tls_context
from sojourn.links.session import Identity, Session
from sojourn.links.settings import read_password
from sojourn.protocol.topics import Address, inbox_filter

if TYPE_CHECKING:
    from sojourn.links.settings import BrokerSettings

_PATIENCE = 20.0
_VERSIONS = {
    "auto": (MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311),
    "5": (MQTTProtocolVersion.MQTTv5,),
    "3.1.1": (MQTTProtocolVersion.MQTTv311,),
}


def refusal_of(settings: BrokerSettings, fleet: str, name: str) -> str | None:
    """Why the broker does not let the device in; None if it does.

    With a client id of its own: with the device's, the broker would throw out the agent that may be running.
    """
    username = name if settings.username is None else settings.username
    filters = (inbox_filter(fleet, Address("device", name)),)
    identity = Identity(
        f"{name}-preflight", username, read_password(settings), tls_context(settings.tls), filters, None
    )
    reason: str | None = None
    for version in _VERSIONS[settings.protocol]:
        let_in = threading.Event()

        def enter(session: Session, let_in: threading.Event = let_in) -> None:
            let_in.set()
            session.disconnect(0)

        session = Session(settings, identity, version, enter, lambda _t, _p: None, threading.Event(), _PATIENCE)
        ending = session.run()
        if let_in.is_set():
            return None
        reason = ending.reason
        if ending.answered:
            break
    return reason
