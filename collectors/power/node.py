"""Power of the whole machine as its management controller says: IPMI (DCMI) and Redfish."""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from collectors.power.command import output
from collectors.power.http import Page
from collectors.power.source import Device, Kind, Sample, Scope, SourceError, number

USER_VARIABLE = "AGENTX_REDFISH_USER"
PASSWORD_VARIABLE = "AGENTX_REDFISH_PASSWORD"

_DCMI = re.compile(r"Instantaneous power reading\s*:\s*(\d+(?:\.\d+)?)\s*Watts", re.IGNORECASE)


class IpmiSource:
    """`ipmitool dcmi power reading` on this machine."""

    name = "ipmi"
    scope = Scope.NODE
    _device = Device("node", "chassis (DCMI)")

    def __init__(self) -> None:
        self.problems: Counter[str] = Counter()

    def devices(self) -> list[Device]:
        """The machine; SourceError when the controller gives no power."""
        if self.sample()[0].watts is None:
            raise SourceError("ipmitool: the controller gives no power reading")
        return [self._device]

    def sample(self) -> list[Sample]:
        """One reading."""
        watts = parse_dcmi(output(("ipmitool", "dcmi", "power", "reading")))
        if watts is None:
            self.problems["ipmitool: no power reading"] += 1
        return [Sample(self._device, Kind.INSTANT, "Instantaneous power reading", watts=watts)]

    def close(self) -> None:
        """Nothing is held."""


def parse_dcmi(text: str) -> float | None:
    """Watts; None where the reading is deactivated, or 0, which controllers print that have no sensor."""
    match = _DCMI.search(text)
    if match is None or "deactivated" in text.lower():
        return None
    return float(match[1]) or None


class RedfishSource:
    """Chassis that stand in no other chassis. User and password come from the environment."""

    name = "redfish"
    scope = Scope.NODE

    def __init__(self, url: str) -> None:
        self.problems: Counter[str] = Counter()
        parts = urlsplit(url)
        self._root = urlunsplit((parts.scheme, parts.netloc, "", "", ""))
        self._page: Page | None = None
        self._readings: list[tuple[Device, str]] = []

    def devices(self) -> list[Device]:
        """Chassis with a power reading; SourceError when there is none."""
        self.close()
        user, password = os.environ.get(USER_VARIABLE), os.environ.get(PASSWORD_VARIABLE)
        self._page = Page(auth=(user, password) if user and password else None)
        listed = self._get("/redfish/v1/Chassis")
        for member in listed.get("Members") or ():
            path = member.get("@odata.id") if isinstance(member, dict) else None
            if isinstance(path, str):
                self._add(path)
        if not self._readings:
            self.close()
            raise SourceError(f"{self._root}: no chassis with a power reading")
        return [device for device, _ in self._readings]

    def sample(self) -> list[Sample]:
        """One reading per chassis; SourceError when the controller is gone."""
        samples = []
        for device, path in self._readings:
            field, watts = _redfish_watts(self._get(path))
            if watts is None:
                self.problems[f"{path}: no power reading"] += 1
            samples.append(Sample(device, Kind.INSTANT, field, watts=watts, host=urlsplit(self._root).hostname))
        return samples

    def close(self) -> None:
        """Close the connection."""
        self._readings = []
        if self._page is not None:
            self._page.close()
            self._page = None

    def _add(self, path: str) -> None:
        chassis = self._get(path)
        if (chassis.get("Links") or {}).get("ContainedBy"):
            return
        for key in ("EnvironmentMetrics", "Power"):
            link = (chassis.get(key) or {}).get("@odata.id")
            if not isinstance(link, str):
                continue
            try:
                _, watts = _redfish_watts(self._get(link))
            except SourceError as error:
                self.problems[str(error)] += 1
                continue
            if watts is not None:
                name = str(chassis.get("Name") or chassis.get("Id") or path)
                self._readings.append((Device(f"chassis:{chassis.get('Id') or path}", name), link))
                return

    def _get(self, path: str) -> dict[str, Any]:
        if self._page is None:
            raise SourceError(f"{self._root}: not open")
        document = self._page.json(self._root + path)
        if not isinstance(document, dict):
            raise SourceError(f"{self._root}{path}: not a Redfish resource")
        return document


def _redfish_watts(resource: dict[str, Any]) -> tuple[str | None, float | None]:
    """Watts of an EnvironmentMetrics or a Power resource (DMTF DSP2046); 0 is a missing sensor."""
    reading = resource.get("PowerWatts")
    if isinstance(reading, dict):
        return "PowerWatts.Reading", number(reading.get("Reading")) or None
    controls = resource.get("PowerControl")
    if isinstance(controls, list) and controls and isinstance(controls[0], dict):
        return "PowerControl.PowerConsumedWatts", number(controls[0].get("PowerConsumedWatts")) or None
    return None, None
