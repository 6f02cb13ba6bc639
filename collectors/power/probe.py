"""The user's own meter: a command or a URL that says watts."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable
from typing import Any

from collectors.power.command import output
from collectors.power.http import Page
from collectors.power.source import Device, Kind, Sample, Scope, SourceError, number

_REMEDY = 'print a number of watts, or {"watts": 512.3, "joules": 9.1e6, "device": "rack 4"} or a list of these'


class ProbeSource:
    """Reads what `fetch` returns: a number, or JSON with watts, a joule counter, or both, per device."""

    scope = Scope.GIVEN

    def __init__(self, name: str, fetch: Callable[[], str], close: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.problems: Counter[str] = Counter()
        self._fetch = fetch
        self._close = close

    @classmethod
    def command(cls, text: str) -> ProbeSource:
        """A command with its arguments, run without a shell; SourceError when the quotes do not match."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise SourceError(f"{text}: {error}") from error
        if not words:
            raise SourceError("an empty command")
        return cls("cmd", lambda: output(words))

    @classmethod
    def url(cls, url: str) -> ProbeSource:
        """An HTTP address."""
        page = Page()
        return cls("url", lambda: page.text(url), page.close)

    def devices(self) -> list[Device]:
        """What the first answer names; SourceError when it holds no number."""
        return list({sample.device.id: sample.device for sample in self.sample()}.values())

    def sample(self) -> list[Sample]:
        """Ask once."""
        return parse_probe(self._fetch(), self.name)

    def close(self) -> None:
        """Let go of the connection."""
        self._close()


def parse_probe(text: str, name: str) -> list[Sample]:
    """Samples of an answer; SourceError where it holds neither watts nor joules."""
    watts = number(text)
    if watts is not None:
        return [Sample(Device(name, name), Kind.INSTANT, "watts", watts=watts)]
    try:
        document = json.loads(text)
    except ValueError as error:
        shown = " ".join(text.split())[:40]
        raise SourceError(f"{name}: not a number of watts: {shown!r}; {_REMEDY}") from error
    rows = document if isinstance(document, list) else [document]
    samples: list[Sample] = []
    for row in rows:
        samples += _row(row if isinstance(row, dict) else {}, name)
    if not samples:
        raise SourceError(f"{name}: the answer holds neither watts nor joules; {_REMEDY}")
    return samples


def _row(row: dict[str, Any], name: str) -> list[Sample]:
    device = Device(str(row.get("device") or name), str(row.get("device") or name))
    samples = []
    if "watts" in row:
        samples.append(Sample(device, Kind.INSTANT, "watts", watts=number(row["watts"])))
    if (joules := number(row.get("joules"))) is not None:
        samples.append(Sample(device, Kind.COUNTER, "joules", joules=joules))
    return samples
