"""Energy counters of the processor's packages and memory (RAPL) from sysfs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from collectors.power.source import Device, Kind, Sample, Scope, SourceError

ROOT = Path("/sys/class/powercap")


class RaplSource:
    """Packages and their DRAM (not part of the package counter). Cores and `psys` are parts or sums of these.

    The counters wrap after minutes to hours (`max_energy_range_uj`); samples go on rising. A wrap is seen as long as
    there is a reading per turn: 262 kJ at 400 W is eleven minutes.
    """

    name = "rapl"
    scope = Scope.CPU

    def __init__(self, root: Path = ROOT) -> None:
        self.problems: Counter[str] = Counter()
        self._root = root
        self._zones: list[_Zone] = []

    def devices(self) -> list[Device]:
        """Zones that can be read; SourceError when there is none."""
        zones: list[_Zone] = []
        reasons: list[str] = []
        for path in sorted(self._root.glob("intel-rapl:*")):
            try:
                zone = _Zone(path)
                if zone.counted:
                    if zone.read() > 0:
                        zones.append(zone)
                    else:
                        reasons.append(f"{path}: the counter stands at 0, as where it is not supported")
            except (OSError, ValueError) as error:
                reasons.append(_why(path, error))
        for reason in reasons:
            self.problems[reason] += 1
        # Totals go on over a re-opening: they have no other zero than the first reading.
        known = {zone.path: zone for zone in self._zones}
        self._zones = [known.get(zone.path, zone) for zone in zones]
        if not zones:
            raise SourceError(reasons[0] if reasons else f"{self._root}: no RAPL zone")
        return [zone.device for zone in self._zones]

    def sample(self) -> list[Sample]:
        """The counter of every zone; SourceError when none can be read any more."""
        samples, reasons = [], []
        for zone in self._zones:
            try:
                joules = zone.read()
            except (OSError, ValueError) as error:
                reasons.append(_why(zone.path, error))
                self.problems[reasons[-1]] += 1
                continue
            samples.append(Sample(zone.device, Kind.COUNTER, "energy_uj", joules=joules))
        if reasons and not samples:
            raise SourceError(reasons[0])
        return samples

    def close(self) -> None:
        """Nothing is held."""


class _Zone:
    def __init__(self, path: Path) -> None:
        self.path = path
        name = (path / "name").read_text().strip()
        nested = path.name.count(":") > 1  # intel-rapl:0:1 is a part of intel-rapl:0
        self.counted = name == "dram" or (name.startswith("package") and not nested)
        if nested:
            name = f"{(path.parent / path.name.rpartition(':')[0] / 'name').read_text().strip()} {name}"
        self.device = Device(f"cpu:{path.name.partition(':')[2]}", name)
        self._range = int((path / "max_energy_range_uj").read_text())
        self._last: int | None = None
        self._turns = 0

    def read(self) -> float:
        """Joules, rising over wraps."""
        now = int((self.path / "energy_uj").read_text())
        if self._last is not None and now < self._last:
            self._turns += 1
        self._last = now
        return (now + self._turns * (self._range + 1)) * 1e-6


def _why(path: Path, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f"{path}: the energy counter needs root (or a udev rule that lets this user read energy_uj)"
    return f"{path}: {getattr(error, 'strerror', None) or error}"
