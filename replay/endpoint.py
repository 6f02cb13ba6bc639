"""Where requests go: a parsed endpoint URL and the limits of its transport."""

from __future__ import annotations

import re
import ssl
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, quote, unquote, urlsplit

from results.errors import UserError

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]+")
_OWN_HEADERS = frozenset(
    [
        "host",
        "content-type",
        "content-length",
        "transfer-encoding",
        "connection",
        "accept",
        "accept-encoding",
        "user-agent",
        "x-request-id",
        "expect",
        "upgrade",
    ]
)
"""Every request's own: not to be given, and no secrets."""
_SHORTEST_SECRET = 4
"""A shorter value hides nothing, and blotting it out would spoil every text."""


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
    def way(self) -> str:
        """The endpoint as error texts name it: with the proxy, where the environment puts one before it."""
        if self.proxy is None:
            return self.base
        proxy = self.proxy.rpartition("@")[2].rpartition("://")[2]
        return f"{self.base} through the proxy {proxy} that {self.scheme}_proxy names"

    @property
    def remedy(self) -> str:
        """What to do when nobody answers."""
        if self.proxy is None:
            return "is the server up and the port right?"
        return f"unset {self.scheme}_proxy, or add {self.host} to no_proxy"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be written anywhere: header values and what they are made of."""
        return header_secrets(self.headers)

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
    headers: Sequence[tuple[str, str]] = (),
) -> Endpoint:
    """Parse `http[s]://host[:port][/prefix][/v1]` or `unix:/path/to.sock`.

    User and password in the URL become a Basic header and leave the URL; `headers` are sent as well, and an
    authorization among them instead of both. Raises UserError naming the URL.
    """
    if url.startswith("unix:"):
        path = url.removeprefix("unix:").removeprefix("//")
        return Endpoint(f"unix:{path}", "http", "localhost", 80, "", uds=path, headers=_headers(headers, api_key, None))
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
        headers=_headers(headers, api_key, parts),
    )


def read_headers(file: Path) -> tuple[tuple[str, str], ...]:
    """Headers from a file, one `Name: value` a line, empty lines and `#` comments left out; names in lower case.

    UserError names file and line, never a value.
    """
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--headers-file {file}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, mark, value = (part.strip() for part in line.partition(":"))
        where = f"--headers-file {file}:{number}"
        if not mark or not value or not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise UserError(f"{where}: not a header", remedy="write `Name: value`, in Latin-1, without control codes")
        if (name := name.lower()) in _OWN_HEADERS:
            raise UserError(f"{where}: {name} is set by every request itself", remedy="leave it out")
        if name in found:
            raise UserError(f"{where}: {name} is given twice", remedy="give it once")
        found[name] = value
    return tuple(found.items())


def header_secrets(headers: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The values, the key inside a `Bearer key`, each cookie: a server may repeat any of them in an error text."""
    found: list[str] = []
    for name, value in headers:
        if name in _OWN_HEADERS:
            continue
        found += [value, value.partition(" ")[2]]
        if name == "cookie":
            found += [part.partition("=")[2].strip() for part in value.split(";")]
    return tuple(dict.fromkeys(secret for secret in found if len(secret) >= _SHORTEST_SECRET))


def _headers(
    given: Sequence[tuple[str, str]], api_key: str | None, parts: SplitResult | None
) -> tuple[tuple[str, str], ...]:
    if any(name == "authorization" for name, _ in given):
        return tuple(given)
    return (*_credentials(api_key, parts), *given)


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
