"""From `--power` to open sources: what the user named, or what this machine has."""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.power.source import Device, Source, SourceError
from results.errors import UserError

CHOICES = (
    "auto, none, nvidia, amd, tpu[:WATTS], rapl, ipmi, redfish:URL, dcgm:URL, amd-exporter:URL, agent:URL, "
    "cmd:COMMAND, url:URL"
)


@dataclass(slots=True)
class Opened:
    """Open sources with their devices, and what was looked for and not found (name, reason)."""

    sources: list[tuple[Source, list[Device]]] = field(default_factory=list)
    absent: list[tuple[str, str]] = field(default_factory=list)


def open_sources(choices: Sequence[str], *, local: bool = True, token: str | None = None) -> Opened:
    """Open what `choices` name. `local`: the endpoint runs on this machine, so its devices are this machine's.

    Raises UserError when a named source (not `auto`) can't be read.
    """
    opened = Opened()
    try:
        for choice in choices:
            if choice == "auto":
                _detect(opened, local=local)
            elif choice != "none":
                _named(opened, choice, token)
    except UserError:
        close(opened)
        raise
    return opened


def _named(opened: Opened, choice: str, token: str | None) -> None:
    try:
        _open(opened, _makers(choice, token))
    except SourceError as error:
        raise UserError(f"--power {_shown(choice)}: {error}", remedy="or measure none: --power none") from error


def close(opened: Opened) -> None:
    """Let go of all that is open."""
    for source, _ in opened.sources:
        source.close()


def is_local(host: str) -> bool:
    """Whether an address of `host` is one of this machine's own (an address can be bound only where it lives)."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
        except OSError:
            continue
    return False


def _detect(opened: Opened, *, local: bool) -> None:
    if not local:
        reason = "the endpoint is on another machine: give --power agent:URL (agentx collect there) or dcgm:URL"
        opened.absent.append(("auto", reason))
        return
    for name in ("nvidia", "amd", "tpu", "rapl", "ipmi"):
        if name == "tpu" and not (importlib.util.find_spec("tpu_info") and _any("/dev/accel*", "/dev/vfio/*")):
            continue
        if name == "ipmi" and not os.access("/dev/ipmi0", os.R_OK | os.W_OK):
            continue
        try:
            _open(opened, _makers(name, None))
        except SourceError as error:
            opened.absent.append((name, str(error)))


def _open(opened: Opened, makers: Sequence[Callable[[], Source]]) -> None:
    """Add the first that can be read; SourceError with every reason when none can."""
    reasons = []
    for make in makers:
        source = make()
        same = sum(other.name.partition("#")[0] == source.name for other, _ in opened.sources)
        if same:  # two meters of a kind are two, also where their devices have no names
            source.name += f"#{same + 1}"
        try:
            opened.sources.append((source, source.devices()))
            return
        except SourceError as error:
            reasons.append(str(error))
        except Exception as error:  # a vendor's package may raise anything
            reasons.append(f"{type(error).__name__}: {error}")
        source.close()
    raise SourceError("; ".join(reasons))


def _any(*patterns: str) -> bool:
    return any(next(Path("/").glob(pattern.lstrip("/")), None) is not None for pattern in patterns)


def _makers(choice: str, token: str | None) -> list[Callable[[], Source]]:
    """Ways to read what `choice` names, the best first. UserError for a name or an argument that is none."""
    name, _, rest = choice.partition(":")
    plain: dict[str, Callable[[], list[Callable[[], Source]]]] = {
        "nvidia": _nvidia, "amd": _amd, "tpu": _tpu, "rapl": _rapl, "ipmi": _ipmi,
    }  # fmt: skip
    if name in plain and not rest:
        return plain[name]()
    if name == "tpu":
        return _tpu(_watts(choice, rest))
    if name in ("dcgm", "amd-exporter", "redfish", "agent", "url"):
        if not rest.startswith(("http://", "https://")):
            raise UserError(f"--power {_shown(choice)}: no http:// address", remedy=f"write {name}:http://HOST:PORT")
        return [_by_url(name, rest, token)]
    if name == "cmd" and rest:
        from collectors.power.probe import ProbeSource

        return [lambda: _command(ProbeSource, rest)]
    raise UserError(f"--power {_shown(choice)}", remedy=f"choose from: {CHOICES}")


def _nvidia() -> list[Callable[[], Source]]:
    from collectors.power.nvidia import NvidiaSource, NvidiaToolSource

    return [NvidiaSource, NvidiaToolSource]


def _amd() -> list[Callable[[], Source]]:
    from collectors.power.amd import AmdSource, AmdToolSource

    return [AmdSource, AmdToolSource]


def _tpu(watts: float | None = None) -> list[Callable[[], Source]]:
    from collectors.power.tpu import TpuSource

    return [lambda: TpuSource(watts)]


def _rapl() -> list[Callable[[], Source]]:
    from collectors.power.rapl import RaplSource

    return [RaplSource]


def _ipmi() -> list[Callable[[], Source]]:
    from collectors.power.node import IpmiSource

    return [IpmiSource]


def _by_url(name: str, url: str, token: str | None) -> Callable[[], Source]:
    if name == "redfish":
        from collectors.power.node import RedfishSource

        return lambda: RedfishSource(url)
    if name == "agent":
        from collectors.power.remote import RemoteSource

        return lambda: RemoteSource(url, token)
    if name == "url":
        from collectors.power.probe import ProbeSource

        return lambda: ProbeSource.url(url)
    from collectors.power.exporters import ExporterSource

    return lambda: ExporterSource(url)


def _command(kind: Any, text: str) -> Source:
    try:
        source: Source = kind.command(text)
    except SourceError as error:
        raise UserError(f"--power cmd: {error}", remedy="write --power 'cmd:PROGRAM ARGUMENTS'") from error
    return source


def _watts(choice: str, text: str) -> float:
    from collectors.power.source import number

    watts = number(text)
    if watts is None or watts <= 0:
        raise UserError(f"--power {choice}: not a number of watts", remedy="write tpu:250 for 250 W a chip")
    return watts


def _shown(choice: str) -> str:
    """The choice without what may be a secret in it."""
    from results.redact import redact

    return redact(choice)
