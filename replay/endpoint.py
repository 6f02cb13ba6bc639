"""Where requests go: a parsed endpoint URL and the limits of its transport."""

from __future__ import annotations

import ssl
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import SplitResult, quote, unquote, urlsplit

from results.errors import UserError


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits in seconds; None is no limit. There is no limit on a whole answer: a long prefill is not a fault."""

    connect_s: float = 10.0
    first_byte_s: float | None = None
    between_bytes_s: float | None = None
    keep_alive_s: float = 4.0
    """Idle connections older than this are closed by us: below the 5 s after which common servers close them."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server: `base` is the URL without `/v1` and without credentials, safe to print."""

    base: str
    scheme: str
    host: str
    port: int
    path: str
    uds: str | None = None
    proxy: str | None = None
    ca_file: str | None = None
    insecure: bool = False
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Sent with every request (credentials among them): never written anywhere."""

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "https"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be written anywhere: header values, and the key inside a `Bearer key`."""
        values = [value for _, value in self.headers]
        return (*values, *(value.split(" ", 1)[1] for value in values if " " in value))

    @property
    def authority(self) -> str:
        """The Host header's value."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        default = 443 if self.tls else 80
        return host if self.port == default else f"{host}:{self.port}"

    def ssl_context(self) -> ssl.SSLContext:
        """Verification on, unless the user said `--insecure`; a private CA through `--ca-file`."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise UserError(f"--ca-file {self.ca_file}: {error}", remedy="give a PEM file") from error
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def parse_endpoint(
    url: str,
    *,
    api_key: str | None = None,
    ca_file: str | None = None,
    insecure: bool = False,
) -> Endpoint:
    """Parse `http[s]://host[:port][/prefix][/v1]` or `unix:/path/to.sock`.

    User and password in the URL become a Basic header and leave the URL. Raises UserError naming the URL.
    """
    if url.startswith("unix:"):
        path = url.removeprefix("unix:").removeprefix("//")
        return Endpoint(f"unix:{path}", "http", "localhost", 80, "", uds=path, headers=_credentials(api_key, None))
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        raise UserError(f"--endpoint {_safe(url)}: {error}", remedy="write http://host:port") from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"--endpoint {_safe(url)} is not a URL", remedy="write http://host:port")
    if parts.query or parts.fragment:
        raise UserError(
            f"--endpoint {_safe(url)} has a query", remedy="give keys through AGENTX_API_KEY, not in the URL"
        )
    path = parts.path.rstrip("/").removesuffix("/v1")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    base = f"{parts.scheme}://{host}:{port}{path}"
    return Endpoint(
        base,
        parts.scheme,
        parts.hostname,
        port,
        quote(path, safe="/%"),
        proxy=_proxy_for(parts.scheme, parts.hostname, port),
        ca_file=ca_file,
        insecure=insecure,
        headers=_credentials(api_key, parts),
    )


def _safe(url: str) -> str:
    """A URL for an error text: credentials and query cut."""
    head, _, tail = url.partition("@")
    kept = f"{head.partition('://')[0]}://…@{tail}" if tail else head
    return kept.partition("?")[0]


def _credentials(api_key: str | None, parts: SplitResult | None) -> tuple[tuple[str, str], ...]:
    if api_key:
        return (("authorization", f"Bearer {api_key}"),)
    if parts is not None and parts.username is not None:
        import base64

        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return (("authorization", "Basic " + base64.b64encode(pair.encode()).decode()),)
    return ()


def _bypassed(authority: str) -> bool:
    bypass: Callable[[str], int] = urllib.request.proxy_bypass_environment  # type: ignore[attr-defined]
    return bool(bypass(authority))


def _proxy_for(scheme: str, host: str, port: int) -> str | None:
    """The proxy that the environment names for this host (`HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY`)."""
    if host in ("localhost", "::1") or host.startswith("127."):
        return None
    proxy = urllib.request.getproxies_environment().get(scheme)
    if not proxy or _bypassed(f"{host}:{port}"):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
