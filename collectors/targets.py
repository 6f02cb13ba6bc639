"""Which pages to scrape: found next to the endpoint, given one by one, or read from a file of targets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from collectors.exposition import NotMetricsError, PageParser
from collectors.tables import dialects
from results.errors import UserError
from results.redact import redact

ROLES = frozenset({"frontend", "worker", "prefill", "decode", "cache"})
_PATHS = ("/metrics", "/prometheus/metrics")
_DISCOVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """One page of metrics. `role` where somebody stated it (else it is read from the page); `labels` of a file.

    `trusted` targets share the endpoint's origin and get the run's credentials; nobody else does.
    """

    url: str
    """Its name, without credentials."""
    role: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    trusted: bool = False
    address: str = field(default="", repr=False)
    """What is fetched: the URL as it was given. Never written anywhere."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """The pages found next to an endpoint, and why others are not among them."""

    targets: list[Target]
    notes: list[str]


def candidates(endpoint_url: str) -> list[str]:
    """Where engines put their page: beside `/v1`, below a path prefix if there is one, else at the root."""
    parts = urlsplit(endpoint_url if "//" in endpoint_url else f"http://{endpoint_url}")
    prefix = f"{parts.path}/".partition("/v1/")[0].rstrip("/")
    found: list[str] = []
    for root in dict.fromkeys((prefix, "")):
        found += [urlunsplit((parts.scheme, parts.netloc, root + path, "", "")) for path in _PATHS]
    return found


async def discover(
    endpoint_url: str, client: httpx.AsyncClient, *, headers: dict[str, str] | None = None
) -> Discovered:
    """Try the usual places next to the endpoint; ports that nobody named are not guessed.

    A page without samples yet counts only where no other place has some: some engines fill it at the first request.
    """
    notes: list[str] = []
    empty: Target | None = None
    for url in candidates(endpoint_url):
        target = Target(url, trusted=True)
        try:
            response = await client.get(url, headers=headers, timeout=_DISCOVERY_S, follow_redirects=True)
        except httpx.HTTPError as error:
            notes.append(f"{url}: {refusal(error)}")
            continue
        if response.status_code != 200:
            notes.append(f"{url}: {status_reason(response.status_code)}")
            continue
        try:
            page = PageParser().parse(response.content, response.headers.get("content-type", ""))
        except NotMetricsError as error:
            notes.append(f"{url}: {error}")
            continue
        if page.series:
            return Discovered([target], notes)
        empty = empty or target
    if empty is not None:
        return Discovered([empty], [*notes, f"{empty.url}: empty so far; some engines fill it at the first request"])
    ways = "; ".join(dict.fromkeys(d.enable for d in dialects().values() if d.role == "worker"))
    return Discovered([], [*notes, f"no metrics page: {ways}; or give --metrics-url"])


async def find_targets(
    endpoint_url: str,
    client: httpx.AsyncClient,
    *,
    urls: Sequence[str] = (),
    file: Path | None = None,
    headers: dict[str, str] | None = None,
) -> Discovered:
    """What was given by address and by file, and the page next to the endpoint. UserError as `explicit` and
    `read_targets`; the notes of a discovery in vain are kept only where nothing was given.
    """
    given = explicit(urls, endpoint_url=endpoint_url) + (read_targets(file) if file else [])
    found = await discover(endpoint_url, client, headers=headers)
    known = {target.url for target in given}
    targets = given + [target for target in found.targets if target.url not in known]
    return Discovered(targets, [] if given and not found.targets else found.notes)


def status_reason(status: int) -> str:
    """What an HTTP status other than 200 means for a page of metrics."""
    if status in (401, 403):
        return f"HTTP {status}: the page asks for credentials"
    if status == 404:
        return "HTTP 404: there is no such page; metrics may be switched off, or on another port"
    if 300 <= status < 400:
        return f"HTTP {status}: redirected elsewhere; give the final address with --metrics-url"
    return f"HTTP {status}"


def refusal(error: Exception) -> str:
    """A failed request in a few words."""
    if isinstance(error, (httpx.TimeoutException, TimeoutError)):
        return "no answer in time"
    if isinstance(error, httpx.ConnectError):
        return "no connection"
    return f"{type(error).__name__}: {error}"[:200]


def explicit(urls: Sequence[str], *, endpoint_url: str | None = None) -> list[Target]:
    """Targets from `--metrics-url`, each `URL` or `ROLE=URL`. UserError when one is neither."""
    found = []
    origin = _origin(endpoint_url) if endpoint_url else None
    for text in urls:
        role, _, rest = text.partition("=")
        stated = role if rest and role in ROLES else None
        url = rest if stated else text
        _check(url, f"--metrics-url {redact(text)}")
        found.append(Target(redact(url), role=stated, trusted=_origin(url) == origin, address=url))
    return found


def read_targets(path: Path) -> list[Target]:
    """Targets from a file in Prometheus' file_sd format (JSON, or YAML by its suffix).

    A list of `{targets: [host:port or URL, ...], labels: {...}}`. The labels `__scheme__` and `__metrics_path__` work
    as they do there; a label `role` states the role. UserError names the file and the entry at fault.
    """
    try:
        document = _load(path)
    except (OSError, ValueError) as error:
        raise UserError(f"--metrics-targets {path}: {error}", remedy="a JSON or YAML file of targets") from error
    if not isinstance(document, list):
        raise UserError(f"--metrics-targets {path}: not a list", remedy="[{targets: [host:port], labels: {}}]")
    found = []
    for number, group in enumerate(document):
        where = f"--metrics-targets {path}: entry {number}"
        if not isinstance(group, dict) or not isinstance(group.get("targets"), list):
            raise UserError(f"{where}: no list `targets`", remedy="[{targets: [host:port], labels: {}}]")
        labels = {str(key): str(value) for key, value in (group.get("labels") or {}).items()}
        role = labels.get("role")
        if role is not None and role not in ROLES:
            raise UserError(f"{where}: role {role!r}", remedy=f"one of {', '.join(sorted(ROLES))}")
        scheme, page = labels.pop("__scheme__", "http"), labels.pop("__metrics_path__", "/metrics")
        for item in group["targets"]:
            url = str(item) if "://" in str(item) else f"{scheme}://{item}{page}"
            _check(url, where)
            found.append(Target(redact(url), role=role, labels=labels, address=url))
    return found


def _load(path: Path) -> Any:
    if path.suffix not in (".yml", ".yaml"):
        return json.loads(path.read_bytes())
    import yaml

    try:
        return yaml.safe_load(path.read_text("utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _check(url: str, where: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good:
        raise UserError(f"{where}: {redact(url)} is not an http URL", remedy="for example http://node1:8000/metrics")


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url if "//" in url else f"http://{url}")
    return parts.scheme, parts.netloc if parts.port else f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}"
