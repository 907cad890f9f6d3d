"""From where the pages can be reached, and what that asks for: said before anything is served."""

from __future__ import annotations

import ipaddress
from pathlib import Path  # msgspec reads it
from urllib.parse import urlsplit

import msgspec

from sojourn.errors import ConfigError

LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """How the pages are served."""

    host: str
    port: int
    origin: str = ""
    """The address that browsers know them by, such as `https://fleet.example.org`; empty on loopback."""
    certificate: Path | None = None
    certificate_key: Path | None = None
    login_file: Path | None = None
    behind_proxy: bool = False
    operate: bool = False

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches them."""
        return is_loopback(self.host)

    @property
    def tls(self) -> bool:
        """Whether they are encrypted here."""
        return self.certificate is not None

    @property
    def secure(self) -> bool:
        """Whether browsers see them over TLS, so that cookies may say so."""
        return self.tls or self.origin.startswith("https://")

    @property
    def address(self) -> str:
        """What to open."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return self.origin or f"{'https' if self.tls else 'http'}://{shown}:{self.port}"

    @property
    def origins(self) -> frozenset[str]:
        """The origins whose pages may speak to this server: its own."""
        scheme, port = ("https" if self.tls else "http"), self.port
        own = {f"{scheme}://localhost:{port}", f"{scheme}://127.0.0.1:{port}", f"{scheme}://[::1]:{port}"}
        found = own if self.loopback else {self.address}
        return frozenset(found | ({self.origin} if self.origin else set()))

    @property
    def hosts(self) -> frozenset[str]:
        """What the header `Host` may say: whatever else it says, somebody else's name was led here."""
        return frozenset(_with_port(urlsplit(origin).netloc, origin) for origin in self.origins)

    def check(self) -> None:
        """Refuse what would show the fleet to whoever comes by."""
        if (self.certificate is None) != (self.certificate_key is None):
            raise ConfigError("--certificate and --certificate-key go together")
        if self.origin:
            _check_origin(self.origin)
        if self.behind_proxy:
            if not self.origin:
                raise ConfigError("--behind-proxy needs --origin: the address that browsers see, https://HOST")
            if not self.loopback and self.login_file is None:
                raise ConfigError(
                    f"--host {self.host} can be reached past the proxy: add --login-file, or stay on 127.0.0.1"
                )
            return
        if self.loopback:
            return
        lacks = [
            *(["a login (--login-file FILE)"] if self.login_file is None else []),
            *(["TLS (--certificate FILE --certificate-key FILE)"] if not self.tls else []),
            *(["the address that people open (--origin https://HOST:PORT)"] if not self.origin else []),
        ]
        if lacks:
            raise ConfigError(
                f"--host {self.host} lets other machines in, and lacks {', '.join(lacks)}. Or stay on 127.0.0.1 and "
                "use an SSH tunnel, or a proxy that does both (--behind-proxy; docs/web.md)"
            )


def is_loopback(host: str) -> bool:
    """Whether an address is of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_origin(origin: str) -> None:
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query or parts.fragment:
        raise ConfigError(f"--origin {origin!r} is no address of a server: write https://HOST or https://HOST:PORT")


def _with_port(netloc: str, origin: str) -> str:
    """As a browser writes it into `Host`: without the port that its scheme has anyway."""
    standard = ":443" if origin.startswith("https:") else ":80"
    return netloc.removesuffix(standard).lower()
