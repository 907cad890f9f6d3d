"""One MQTT connection, from its first byte to its end: the loop that moves its bytes, and its send queue."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from sojourn.links import connection_errors
from sojourn.links.link import PORTABLE_PAYLOAD, Will
from sojourn.links.settings import OWN_BROKER_PAYLOAD, BrokerSettings
from sojourn.protocol.topics import is_state

if TYPE_CHECKING:
    from paho.mqtt.client import ConnectFlags, DisconnectFlags, MQTTMessage, MQTTMessageInfo, SocketLike


# The loop that moves one paho client's bytes.
#
# Paho's own loop wakes up every second, is limited to 1024 files by select, and writes a byte to itself for every
# publish. This one sleeps until there is work.

_READ = selectors.EVENT_READ
_WRITE = selectors.EVENT_WRITE


class MqttLoop:
    """Runs on one thread; `wake` may be called on any."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        # With this callback set, paho leaves all writing to this loop; writes from two threads would garble the stream.
        # The callback does nothing: the loop checks at every step, and other threads call `wake`.
        client.on_socket_register_write = lambda *_: None

    def run(self, nap: Callable[[], float], feed: Callable[[], None], is_over: Callable[[], bool]) -> None:
        """Serve the connection until it ends or is over; feeds at every step, and sleeps for at most `nap` seconds."""
        client, connection = self._client, self._client.socket()
        if connection is None:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, _READ)
            selector.register(connection, _READ)
            watched = _READ
            while client.socket() is not None and not is_over():
                wanted = _READ | _WRITE if client.want_write() else _READ
                if wanted != watched:
                    selector.modify(connection, wanted)
                    watched = wanted
                pending = _pending(connection)
                ready = {key.fileobj: mask for key, mask in selector.select(0 if pending else nap())}
                if pending or ready.get(connection, 0) & _READ:
                    client.loop_read()
                if self._reader in ready:
                    self._reader.recv(4096)
                feed()
                if client.want_write():
                    client.loop_write()
                client.loop_misc()

    def wake(self) -> None:
        """Wake the loop to look for work."""
        # Full: it is awake already. Closed: the loop has ended.
        with contextlib.suppress(OSError):
            self._writer.send(b"\0")

    def close(self) -> None:
        """Close the connection, if it is still open, and release the client."""
        connection = self._client.socket()
        if connection is not None:
            connection.close()
        self._client.on_socket_register_write = None
        self._reader.close()
        self._writer.close()


def _pending(connection: SocketLike) -> int:
    """Return the number of bytes that TLS has already decrypted, which a selector cannot see."""
    return connection.pending() if isinstance(connection, ssl.SSLSocket) else 0


# The send queue of one connection, and its messages in flight.

MAX_UNSENT = 64_000_000
"""Total bytes that may wait; further messages are dropped."""
SLOWEST_UPLINK = 16_000
"""Bytes per second. The ping waits behind the bytes in flight, which must be sent within a keepalive at this rate."""
MAX_MESSAGES_IN_FLIGHT = 100


class _Message(NamedTuple):
    topic: str
    payload: bytes
    retain: bool

    @property
    def size(self) -> int:
        return len(self.topic) + len(self.payload)


class MqttWindow:
    """Messages are added on any thread; only the network thread passes them to paho."""

    def __init__(self, client: Client, wake: Callable[[], None]) -> None:
        self._max_messages = 1
        self._max_bytes = 0
        self._client = client
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: deque[_Message] = deque()
        self._unsent = 0
        self._flying: deque[tuple[MQTTMessageInfo, int]] = deque()
        self._flying_bytes = 0

    def open(self, keepalive: int, receive_maximum: int) -> None:
        """Take the limits that were agreed with the broker."""
        self._max_bytes = SLOWEST_UPLINK * keepalive
        self._max_messages = min(receive_maximum, MAX_MESSAGES_IN_FLIGHT)

    def put(self, topic: str, payload: bytes, *, retain: bool) -> bool:
        """Queue a message; return False if the queue is full."""
        message = _Message(topic, payload, retain)
        with self._lock:
            if self._unsent and self._unsent + message.size > MAX_UNSENT:
                return False
            self._unsent += message.size
            self._waiting.append(message)
            # Behind another message there is no need: the wake-up for that one covers this one too.
            is_alone = len(self._waiting) == 1
        if is_alone:
            self._wake()
        return True

    @property
    def is_empty(self) -> bool:
        """Whether the broker has acknowledged everything."""
        return self._unsent == 0

    def feed(self) -> None:
        """Remove acknowledged messages, and send as many as may be in flight."""
        self._take_acknowledged()
        while self._waiting and self._has_room(self._waiting[0].size):
            message = self._waiting.popleft()
            info = self._client.publish(message.topic, message.payload, qos=1, retain=message.retain)
            if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
                # The connection has just ended; the queue is dropped with it.
                return
            self._flying.append((info, message.size))
            self._flying_bytes += message.size

    def _take_acknowledged(self) -> None:
        landed = 0
        while self._flying and self._flying[0][0].is_published():
            landed += self._flying.popleft()[1]
        if landed:
            self._flying_bytes -= landed
            with self._lock:
                self._unsent -= landed

    def _has_room(self, size: int) -> bool:
        if not self._flying:
            return True
        return len(self._flying) < self._max_messages and self._flying_bytes + size <= self._max_bytes


# One MQTT connection, from its first byte to its end.
#
# Every connection has a separate paho client. Unsent messages of an old connection are dropped with it, so nothing
# stale is resent, and paho's own reconnecting, queueing and protocol downgrade are never used.

_LOG = logging.getLogger(__name__)
HEADER_ROOM = 256
"""Room of a packet in addition to its payload: the longest topic has 212 bytes, the rest is MQTT's header."""
_FLUSH_STEP = 0.005
_CONNECT_SECONDS = 10.0
_SUBSCRIBE_SECONDS = 30.0
"""The timeout for the broker to confirm the subscriptions after it accepted the connection: it may be busy."""
_CALLBACKS = ("on_connect", "on_subscribe", "on_disconnect", "on_message")


class Identity(msgspec.Struct, frozen=True):
    """The identity of a client, and the parameters of every connect."""

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
    """Whether the broker answered in this MQTT version."""
    flap: bool = False
    """Whether the link was up and then cut without a reason."""
    refused: bool = False
    """Whether the broker refused the connection, or its check failed: retrying soon is pointless."""


class Session:
    """One connection; `run` is all that its network thread does; `up` and `arrived` are called on that thread."""

    def __init__(
        self,
        settings: BrokerSettings,
        identity: Identity,
        protocol: MQTTProtocolVersion,
        up: Callable[[Session], None],
        arrived: Callable[[str, bytes], None],
        closing: threading.Event,
        timeout: float,
    ) -> None:
        self.payload_limit = min(PORTABLE_PAYLOAD, settings.max_payload or PORTABLE_PAYLOAD)
        self._settings = settings
        self._identity = identity
        self.protocol = protocol
        self._up = up
        self._arrived = arrived
        self._closing = closing
        self._timeout = timeout
        self._deadline = 0.0
        self._ending: Ending | None = None
        self._connected = False
        self._subscribed = False
        self._retained_dropped = False
        self._errors = _LastError()
        self._client = self._make_client()
        self._loop = MqttLoop(self._client)
        self._window = MqttWindow(self._client, self._loop.wake)

    def run(self) -> Ending:
        """Connect, and serve the connection until it ends."""
        try:
            self._client.connect(self._settings.host, self._settings.effective_port, self._settings.keepalive)
            self._deadline = time.monotonic() + self._timeout
            self._loop.run(self._nap, self._window.feed, self._is_over)
        except (OSError, UnicodeError) as error:
            return Ending(
                connection_errors.cannot_connect(self._settings, error), refused=isinstance(error, ssl.SSLError)
            )
        finally:
            self._release()
        return self._ending or self._lost()

    def publish(self, topic: str, payload: bytes, *, retain: bool) -> bool:
        """Pass a message to the network thread; return False if its queue is full."""
        return self._window.put(topic, payload, retain=retain)

    def disconnect(self, flush_seconds: float) -> None:
        """Send the queued messages, then disconnect cleanly."""
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
            # In MQTT 5 this is `clean_start` of connect(), whose default is right for a first connect.
            clean_session=None if is_5 else True,
            reconnect_on_failure=False,
        )
        client.connect_timeout = _CONNECT_SECONDS
        # The send window replaces paho's, which counts messages, not bytes, and cannot be changed after the connect.
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
        """Return whether to give up on a broker that does not answer, or to leave before the CONNECT is sent."""
        if self._subscribed:
            return False
        # A CONNECT sent after this session's end would disconnect the next client with this name.
        return time.monotonic() > self._deadline or (self._closing.is_set() and not self._connected)

    def _nap(self) -> float:
        """Return how long the loop may sleep without delaying the ping or the timeout."""
        if self._subscribed:
            return self._client.keepalive / 8
        return max(0.0, self._deadline - time.monotonic()) + 0.01

    def _release(self) -> None:
        """Release everything now: objects left to the garbage collector stay open, with their queues."""
        self._loop.close()
        for callback in _CALLBACKS:
            setattr(self._client, callback, None)

    def _on_connect(self, _c: Client, _u: object, _f: ConnectFlags, code: ReasonCode, given: Properties | None) -> None:
        if code.is_failure:
            reason = connection_errors.broker_reason(code.value, code.getName())
            self._ending = Ending(
                f"the broker at {self._settings.address} refused the connection: {reason}",
                answered=code.value != connection_errors.UNSUPPORTED_PROTOCOL,
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
        """Subscribe; of retained messages only presence is wanted: others would be replays or stale data."""
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
            reason = connection_errors.broker_reason(code.value, code.getName())
            self._ending = Ending(f"the broker at {self._settings.address} ended the connection: {reason}")
        elif code == "Keep alive timeout":
            self._ending = Ending(f"the broker at {self._settings.address} sent nothing for too long")

    def _on_message(self, _c: Client, _u: object, message: MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return
        if message.retain and not is_state(topic):  # MQTT 3.1.1 cannot exclude them in the subscription
            self._drop_retained(topic)
            return
        self._arrived(topic, bytes(message.payload))

    def _drop_retained(self, topic: str) -> None:
        if not self._retained_dropped:
            _LOG.warning(
                "%s: dropped a retained message on %s; further ones are dropped silently",
                self._identity.name,
                topic[:200],
            )
        self._retained_dropped = True

    def _lost(self) -> Ending:
        alert = connection_errors.tls_alert(self._errors.text)
        if alert is not None:
            return Ending(f"TLS with {self._settings.address} failed: {alert}", refused=True)
        if not self._connected:
            return Ending(connection_errors.unanswered(self._settings), answered=False)
        detail = f" ({self._errors.text})" if self._errors.text else ""
        return Ending(f"the connection to {self._settings.address} was lost{detail}", flap=self._subscribed)


class _LastError(logging.Handler):
    """Keeps paho's log message about a failing socket, which is the only place where it reports the cause."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""
        # Outside of the logging tree, so that paho's messages are not logged.
        self.logger = logging.Logger("sojourn.links.mqtt.paho", logging.ERROR)  # noqa: LOG001
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the newest log record, to be reported when the connection ends."""
        self.text = record.getMessage().removeprefix("failed to receive on socket: ")


def _without_delay(_client: Client, _userdata: object, connection: SocketLike) -> None:
    """Disable Nagle's algorithm, which takes two thirds of every round trip."""
    if isinstance(connection, socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
