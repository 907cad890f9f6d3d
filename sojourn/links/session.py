"""One MQTT connection, from its first byte to its end.

Every connection gets a paho client of its own. What an old connection left unsent dies with it, so nothing stale is
resent for ever, and paho's own reconnecting, queueing and protocol downgrade never come into play.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from typing import TYPE_CHECKING

import msgspec
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.subscribeoptions import SubscribeOptions

from sojourn.links import reasons
from sojourn.links.link import PORTABLE_PAYLOAD, Will
from sojourn.links.loop import MqttLoop
from sojourn.links.settings import OWN_BROKER_PAYLOAD
from sojourn.links.window import MAX_MESSAGES_IN_FLIGHT, MqttWindow
from sojourn.protocol.topics import is_state

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from paho.mqtt.client import ConnectFlags, DisconnectFlags, MQTTMessage, SocketLike
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

    from sojourn.links.settings import BrokerSettings

_LOG = logging.getLogger(__name__)
HEADER_ROOM = 256
"""What a packet holds besides its payload: our longest topic has 212 bytes, the rest is MQTT's."""
_FLUSH_STEP = 0.005
_CONNECT_SECONDS = 10.0
_SUBSCRIBE_SECONDS = 30.0
"""For a broker that has accepted the connection to confirm the subscriptions: it is alive, and may be busy."""
_CALLBACKS = ("on_connect", "on_subscribe", "on_disconnect", "on_message")


class Identity(msgspec.Struct, frozen=True):
    """Who connects, and what is agreed on every connect."""

    name: str
    username: str | None
    password: str | None
    context: ssl.SSLContext | None
    filters: tuple[str, ...]
    will: Will | None

    def __repr__(self) -> str:
        return f"Identity(name={self.name!r})"


class Ending(msgspec.Struct, frozen=True):
    """Why a connection ended."""

    reason: str
    answered: bool = True
    """Whether the broker spoke this MQTT version with us at all."""
    flap: bool = False
    """Whether the link was up and then cut without a word."""
    refused: bool = False
    """Whether the broker, or our own check of it, said no: trying again soon is no use."""


class Session:
    """One connection; `run` is its network thread's whole work, and `up` and `arrived` are called on that thread."""

    def __init__(
        self,
        settings: BrokerSettings,
        identity: Identity,
        protocol: MQTTProtocolVersion,
        up: Callable[[Session], None],
        arrived: Callable[[str, bytes], None],
        closing: threading.Event,
        patience: float,
    ) -> None:
        self.payload_limit = min(PORTABLE_PAYLOAD, settings.max_payload or PORTABLE_PAYLOAD)
        self._settings = settings
        self._identity = identity
        self.protocol = protocol
        self._up = up
        self._arrived = arrived
        self._closing = closing
        self._patience = patience
        self._deadline = 0.0
        self._ending: Ending | None = None
        self._connected = False
        self._subscribed = False
        self._kept_dropped = False
        self._errors = _LastError()
        self._client = self._make_client()
        self._loop = MqttLoop(self._client)
        self._window = MqttWindow(self._client, self._loop.wake)

    def run(self) -> Ending:
        """Connect, and serve the connection until it ends."""
        try:
            self._client.connect(self._settings.host, self._settings.effective_port, self._settings.keepalive)
            self._deadline = time.monotonic() + self._patience
            self._loop.run(self._nap, self._window.feed, self._is_over)
        except (OSError, UnicodeError) as error:
            return Ending(reasons.cannot_connect(self._settings, error), refused=isinstance(error, ssl.SSLError))
        finally:
            self._release()
        return self._ending or self._lost()

    def publish(self, topic: str, payload: bytes, *, retain: bool) -> bool:
        """Hand a message to the network thread, or say False when too much waits already."""
        return self._window.put(topic, payload, retain=retain)

    def disconnect(self, flush_seconds: float) -> None:
        """Let what waits reach the broker, then leave in good order."""
        deadline = time.monotonic() + flush_seconds
        while not self._window.is_empty and time.monotonic() < deadline and self._client.is_connected():
            time.sleep(_FLUSH_STEP)
        self._client.disconnect()
        self._loop.wake()

    def _make_client(self) -> Client:
        is_5 = self.protocol == MQTTProtocolVersion.MQTTv5
        client = Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._identity.name,
            protocol=self.protocol,
            # In MQTT 5 this is `clean_start` of connect(), whose default is what we want for a first connect.
            clean_session=None if is_5 else True,
            reconnect_on_failure=False,
        )
        client.connect_timeout = _CONNECT_SECONDS
        # The window is ours; paho's counts messages, not bytes, and cannot be changed once the broker states its own.
        client.max_inflight_messages_set(0)
        client.enable_logger(self._errors.logger)
        if self._identity.username:
            client.username_pw_set(self._identity.username, self._identity.password)
        if self._identity.context is not None:
            client.tls_set_context(self._identity.context)
        if self._identity.will is not None:
            client.will_set(self._identity.will.topic, self._identity.will.payload, qos=1, retain=True)
        client.on_socket_open = _without_delay
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        return client

    def _is_over(self) -> bool:
        """Whether to give up on a broker that does not answer, or to leave before we said who we are."""
        if self._subscribed:
            return False
        # A CONNECT that leaves after our own end would throw out whoever has our name by then.
        return time.monotonic() > self._deadline or (self._closing.is_set() and not self._connected)

    def _nap(self) -> float:
        """How long the loop may sleep: to be on time with the ping, or with giving up."""
        if self._subscribed:
            return self._client.keepalive / 8
        return max(0.0, self._deadline - time.monotonic()) + 0.01

    def _release(self) -> None:
        """Let go of everything now: what is left to the garbage collector stays open, with all that it queued."""
        self._loop.close()
        for callback in _CALLBACKS:
            setattr(self._client, callback, None)

    def _on_connect(self, _c: Client, _u: object, _f: ConnectFlags, code: ReasonCode, given: Properties | None) -> None:
        if code.is_failure:
            reason = reasons.said_by_broker(code.value, code.getName())
            self._ending = Ending(
                f"the broker at {self._settings.address} refused the connection: {reason}",
                answered=code.value != reasons.UNSUPPORTED_PROTOCOL,
                refused=True,
            )
            return
        self._connected = True
        self._deadline = time.monotonic() + _SUBSCRIBE_SECONDS
        self.payload_limit = self._limit(getattr(given, "MaximumPacketSize", None))
        self._window.open(self._client.keepalive, getattr(given, "ReceiveMaximum", MAX_MESSAGES_IN_FLIGHT))
        if self._identity.filters:
            self._subscribe(self._identity.filters)
        else:
            self._now_up()

    def _subscribe(self, filters: Sequence[str]) -> None:
        """Of what the broker has kept only presence is wanted: nobody keeps messages there, but to replay or hoard."""
        if self.protocol != MQTTProtocolVersion.MQTTv5:
            self._client.subscribe([(name, 1) for name in filters])
            return
        kept, fresh = SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE, SubscribeOptions.RETAIN_DO_NOT_SEND
        whens = [kept if is_state(name) else fresh for name in filters]
        options = [SubscribeOptions(qos=1, retainHandling=when) for when in whens]
        self._client.subscribe(list(zip(filters, options, strict=True)))

    def _limit(self, max_packet: int | None) -> int:
        is_5 = self.protocol == MQTTProtocolVersion.MQTTv5
        wanted = self._settings.max_payload or (OWN_BROKER_PAYLOAD if is_5 else PORTABLE_PAYLOAD)
        return wanted if max_packet is None else max(0, min(wanted, max_packet - HEADER_ROOM))

    def _on_subscribe(self, _c: Client, _u: object, _mid: int, codes: Sequence[ReasonCode], _p: Properties) -> None:
        denied = [name for name, code in zip(self._identity.filters, codes, strict=False) if code.is_failure]
        if not denied:
            self._now_up()
            return
        reason = f"the broker at {self._settings.address} refused the subscription to {', '.join(denied)}"
        self._ending = Ending(f"{reason}: check its access rules", refused=True)
        self._client.disconnect()

    def _now_up(self) -> None:
        self._subscribed = True
        self._up(self)

    def _on_disconnect(self, _c: Client, _u: object, flags: DisconnectFlags, code: ReasonCode, _p: object) -> None:
        if self._ending is not None:
            return
        if flags.is_disconnect_packet_from_server:
            reason = reasons.said_by_broker(code.value, code.getName())
            self._ending = Ending(f"the broker at {self._settings.address} ended the connection: {reason}")
        elif code == "Keep alive timeout":
            self._ending = Ending(f"nothing was heard from the broker at {self._settings.address} for too long")

    def _on_message(self, _c: Client, _u: object, message: MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return
        if message.retain and not is_state(topic):  # MQTT 3.1.1 cannot ask for less
            self._drop_kept(topic)
            return
        self._arrived(topic, bytes(message.payload))

    def _drop_kept(self, topic: str) -> None:
        if not self._kept_dropped:
            _LOG.warning("%s: dropped what the broker has kept on %s, and all such", self._identity.name, topic[:200])
        self._kept_dropped = True

    def _lost(self) -> Ending:
        alert = reasons.tls_alert(self._errors.text)
        if alert is not None:
            return Ending(f"TLS with {self._settings.address} failed: {alert}", refused=True)
        if not self._connected:
            return Ending(reasons.unanswered(self._settings), answered=False)
        detail = f" ({self._errors.text})" if self._errors.text else ""
        return Ending(f"the connection to {self._settings.address} was lost{detail}", flap=self._subscribed)


class _LastError(logging.Handler):
    """Keeps what paho says of a failing socket; it reports the cause nowhere else."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""
        # Not of the logging tree: nobody else is to hear paho.
        self.logger = logging.Logger("sojourn.links.mqtt.paho", logging.ERROR)  # noqa: LOG001
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a log record as the newest one, to be named when a connection ends."""
        self.text = record.getMessage().removeprefix("failed to receive on socket: ")


def _without_delay(_client: Client, _userdata: object, connection: SocketLike) -> None:
    """Nagle's algorithm costs two thirds of all round trips."""
    if isinstance(connection, socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
