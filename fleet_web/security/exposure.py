"""The address the pages are served at, and the checks that run before serving starts."""

from __future__ import annotations

from pathlib import Path  # msgspec reads it at run time
from urllib.parse import urlsplit

import msgspec

from sojourn.errors import ConfigError
from sojourn.loopback import is_loopback


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """How the pages are served."""

    host: str
    port: int
    origin: str = ""
    """The address that browsers use, such as `https://fleet.example.org`; empty on loopback."""
    certificate: Path | None = None
    certificate_key: Path | None = None
    login_file: Path | None = None
    behind_proxy: bool = False
    operate: bool = False

    @property
    def loopback(self) -> bool:
        """Whether the pages are reachable only from this machine."""
        return is_loopback(self.host)

    @property
    def tls(self) -> bool:
        """Whether this server encrypts connections."""
        return self.certificate is not None

    @property
    def secure(self) -> bool:
        """Whether browsers connect over TLS, so that cookies can be marked as secure."""
        return self.tls or self.origin.startswith("https://")

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return self.origin or f"{'https' if self.tls else 'http'}://{shown}:{self.port}"

    @property
    def origins(self) -> frozenset[str]:
        """The allowed values of the `Origin` header: the server's own origins."""
        scheme, port = ("https" if self.tls else "http"), self.port
        own = {f"{scheme}://localhost:{port}", f"{scheme}://127.0.0.1:{port}", f"{scheme}://[::1]:{port}"}
        return frozenset({self.address, *(own if self.loopback else ())})

    @property
    def hosts(self) -> frozenset[str]:
        """The allowed values of the `Host` header; any other value indicates DNS rebinding."""
        return frozenset(_with_port(urlsplit(origin).netloc, origin) for origin in self.origins)

    def check(self) -> None:
        """Raise ConfigError if the settings would expose the fleet without authentication or encryption."""
        if (self.certificate is None) != (self.certificate_key is None):
            raise ConfigError("--certificate and --certificate-key go together")
        if self.origin:
            _check_origin(self.origin)
        if self.behind_proxy:
            if not self.origin:
                raise ConfigError("--behind-proxy needs --origin: the address that browsers see, https://HOST")
            if not self.loopback and self.login_file is None:
                raise ConfigError(
                    f"--host {self.host} is reachable without going through the proxy: add --login-file, or use "
                    "127.0.0.1"
                )
            return
        if self.loopback:
            return
        missing = [
            *(["a login (--login-file FILE)"] if self.login_file is None else []),
            *(["TLS (--certificate FILE --certificate-key FILE)"] if not self.tls else []),
            *(["the address that browsers use (--origin https://HOST:PORT)"] if not self.origin else []),
        ]
        if missing:
            raise ConfigError(
                f"--host {self.host} accepts other machines, but these are missing: {', '.join(missing)}. "
                "Or use 127.0.0.1 with an SSH tunnel, or a proxy that handles both (--behind-proxy; docs/web.md)"
            )


def _check_origin(origin: str) -> None:
    parts = urlsplit(origin)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query or parts.fragment:
        raise ConfigError(f"--origin {origin!r} is not a server address: write https://HOST or https://HOST:PORT")


def _with_port(netloc: str, origin: str) -> str:
    """Return the value a browser sends in `Host`: the default port of the scheme is omitted."""
    standard = ":443" if origin.startswith("https:") else ":80"
    return netloc.removesuffix(standard).lower()
