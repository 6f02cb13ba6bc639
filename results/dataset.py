"""Many runs as a data set: every run directory below folders or object-store prefixes, and what its JSON files say.

A directory is a run when it holds `run.json` or `summary.json`, at any depth. Runs that can't be used (killed, half
copied, of a newer schema) come out as `Unread` with the reason, so that one of them never hides the others.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from results.errors import UserError
from results.places import Place, Remote, one_line, place, printable
from results.records import SCHEMA_VERSION

MANIFEST, SUMMARY, SIDECAR = "run.json", "summary.json", "serving.json"
_DOCUMENTS = (MANIFEST, SUMMARY, SIDECAR)
_JOURNALS = frozenset({"journal", "journal.used"})
_AT_ONCE = 256
"""Remote runs whose files are fetched together."""

_any = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class RunFiles:
    """A finished run: its folder and what its JSON files say.

    `manifest` is run.json (empty where there is none); `point` and `sweep` of it come from the sweep's serving.json.
    """

    folder: Place
    summary: dict[str, Any]
    manifest: dict[str, Any]
    files: frozenset[str] = frozenset()
    """Names in the folder."""

    @property
    def run_id(self) -> str:
        """As its files say, else the folder's name."""
        return str(self.summary.get("run_id") or self.manifest.get("run_id") or printable(self.folder.name))

    @property
    def key(self) -> tuple[str, ...]:
        """What pairs it with a run of the other side: its point in a sweep, else scenario and load."""
        point = self.manifest.get("point")
        return (str(point),) if point else (str(self.summary.get("scenario")), str(self.summary.get("concurrency")))


@dataclass(frozen=True, slots=True)
class Unread:
    """A run directory whose figures can't be used, and why."""

    folder: Place
    status: str
    """`unfinished`, `unreadable` or `newer`."""
    reason: str
    manifest: dict[str, Any]

    @property
    def run_id(self) -> str:
        """As run.json says where it could be read, else the folder's name."""
        return str(self.manifest.get("run_id") or printable(self.folder.name))

    def __str__(self) -> str:
        return f"{printable(self.folder)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class DataSet:
    """All runs found, in the order of their paths."""

    runs: list[RunFiles]
    unread: list[Unread]


def read(*paths: str | Path, summary: Any = Any) -> DataSet:
    """Every run at or below `paths`, held in memory (some 40 kB a run). `summary` and UserError as `scan`."""
    found = DataSet([], [])
    collecting = gc.isenabled()
    gc.disable()  # documents have no cycles, and going through those of 10,000 runs again and again takes as long again
    try:
        for run in scan(*paths, summary=summary):
            if isinstance(run, RunFiles):
                found.runs.append(run)
            else:
                found.unread.append(run)
    finally:
        if collecting:
            gc.enable()
    return found


def scan(*paths: str | Path, summary: Any = Any) -> Iterator[RunFiles | Unread]:
    """Every run at or below `paths` once, read as it is asked for: a caller who keeps little needs little memory.

    `summary` may be a TypedDict of the keys of summary.json that are wanted: passing over the others takes half the
    time.
    UserError when a path does not exist or can't be listed, or nothing at or below it is a run directory.
    """
    seen: set[tuple[int, int] | str] = set()
    reader = _Reader(msgspec.json.Decoder(summary))
    for path in paths:
        where = place(path)
        if isinstance(where, Remote):
            yield from _scan_remote(where, seen, reader)
        else:
            yield from _scan_local(where, seen, reader)


def find_runs(path: str | Path) -> list[RunFiles]:
    """Finished runs at or below `path`; UserError when there is none or a file can't be read."""
    found = read(path)
    for run in found.unread:
        if run.status != "unfinished":
            raise UserError(str(run))
    if not found.runs:
        raise nothing_in(path, found.unread)
    return found.runs


def usable(found: DataSet, *, include_invalid: bool) -> tuple[list[RunFiles], list[str]]:
    """Runs whose figures may enter a table or a frontier, and a line for each that may not.

    UserError when none may.
    """
    kept, left_out = [], [str(run) for run in found.unread]
    for run in found.runs:
        if run.summary.get("valid") is True or include_invalid:
            kept.append(run)
        else:
            left_out.append(f"{run.folder}: {why_invalid(run.summary)}; --include-invalid takes it")
    if not kept:
        raise UserError("no valid run there" + (f": {left_out[0]}" if left_out else ""))
    return kept, left_out


def why_invalid(summary: dict[str, Any]) -> str:
    """The reasons in a line."""
    reasons = summary.get("invalid_reasons") or ["it does not say why"]
    return f"not valid: {'; '.join(map(str, reasons))}"


def nothing_in(path: str | Path, unread: Iterable[Unread] = ()) -> UserError:
    """That no run there can be used, naming the first that can't."""
    first = next(iter(unread), None)
    if first is not None:
        return UserError(f"{path}: no finished run there: {first}")
    return UserError(f"{path}: no finished run there", remedy="give a run directory or a folder of them")


def _scan_local(root: Path, seen: set[Any], reader: _Reader) -> Iterator[RunFiles | Unread]:
    if not root.is_dir():
        what = "not a folder" if root.exists() else "no such folder"
        raise UserError(f"{root}: no finished run there: {what}", remedy="give a run directory or a folder of them")
    some = False
    for folder, names in _walk(root, seen):
        some = True
        if isinstance(folder, Unread):
            yield folder
        elif names is not None:
            documents = {name: _bytes_of(f"{folder}/{name}") for name in _DOCUMENTS if name in names}
            yield reader.run(folder, names, documents)
    if not some:
        raise nothing_in(root)


def _walk(root: Path, seen: set[Any]) -> Iterator[tuple[Path | Unread, frozenset[str] | None]]:
    """Run directories below `root` with the names in them; None: seen before, by another path or a link."""
    waiting = [str(root)]
    while waiting:
        folder = waiting.pop()
        try:
            at = os.stat(folder)
            with os.scandir(folder) as entries:
                found = [(entry.name, entry.is_dir()) for entry in entries]
        except OSError as error:
            yield Unread(Path(folder), "unreadable", str(error.strerror), {}), None
            continue
        if (at.st_dev, at.st_ino) in seen:
            yield Path(folder), None
            continue
        seen.add((at.st_dev, at.st_ino))
        below = [name for name, is_dir in found if is_dir and name not in _JOURNALS and name[0] != "."]
        waiting += [f"{folder}/{name}" for name in sorted(below, reverse=True)]
        names = frozenset([name for name, _ in found])
        if MANIFEST in names or SUMMARY in names:
            yield Path(folder), names


def _bytes_of(path: str) -> bytes | Exception:
    """The file's content, without the layers of `open`: 20,000 small files are read in half the time."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)
    except OSError as error:
        return error


def _scan_remote(root: Remote, seen: set[Any], reader: _Reader) -> Iterator[RunFiles | Unread]:
    folders = _list_remote(root)
    runs = sorted(folder for folder, names in folders.items() if MANIFEST in names or SUMMARY in names)
    if not runs:
        raise nothing_in(str(root))
    fresh = iter([folder for folder in runs if folder not in seen])
    seen.update(runs)
    while batch := list(islice(fresh, _AT_ONCE)):
        wanted = [(folder, name) for folder in batch for name in _DOCUMENTS if name in folders[folder]]
        got = root.fs.cat_ranges([f"{folder}/{name}" for folder, name in wanted], None, None, on_error="return")
        documents: dict[str, dict[str, bytes | Exception]] = {folder: {} for folder in batch}
        for (folder, name), content in zip(wanted, got, strict=True):
            documents[folder][name] = content
        for folder in batch:
            yield reader.run(Remote(folder, root.fs), frozenset(folders[folder]), documents[folder])


def _list_remote(root: Remote) -> dict[str, set[str]]:
    """Names by folder, a journal as a name of its run."""
    folders: dict[str, set[str]] = {}
    try:
        paths = root.fs.find(root.url)
    except Exception as error:  # every store's client has errors of its own
        raise UserError(f"{root}: can't be listed: {one_line(error)}") from error
    for path in paths:
        folder, _, name = str(root.fs.unstrip_protocol(path)).rpartition("/")
        top, _, last = folder.rpartition("/")
        if last in _JOURNALS:
            folder, name = top, last
        folders.setdefault(folder, set()).add(name)
    return folders


class _Reader:
    """Makes runs of the bytes of their documents."""

    def __init__(self, summaries: msgspec.json.Decoder[Any]) -> None:
        self._summaries = summaries

    def run(self, folder: Place, names: frozenset[str], documents: dict[str, bytes | Exception]) -> RunFiles | Unread:
        """The run of a folder, or why it can't be used."""
        decoded: dict[str, dict[str, Any]] = {}
        for name, content in documents.items():
            document = content if isinstance(content, Exception) else self._object(name, content)
            if isinstance(document, Exception):
                reason = f"not a readable run: {name}: {one_line(document)}"
                return Unread(folder, "unreadable", reason, decoded.get(MANIFEST, {}))
            if why := _newer(document):
                return Unread(folder, "newer", f"{name}: {why}", {})
            decoded[name] = document
        manifest = decoded.get(MANIFEST, {})
        if SUMMARY not in decoded:
            return Unread(folder, "unfinished", _why_unfinished(folder, names), manifest)
        if (sidecar := decoded.get(SIDECAR)) is not None:
            manifest |= {"point": sidecar.get("point"), "sweep": sidecar}
        return RunFiles(folder, decoded[SUMMARY], manifest, names)

    def _object(self, name: str, content: bytes) -> dict[str, Any] | Exception:
        try:
            try:
                document = (self._summaries if name == SUMMARY else _any).decode(content)
            except msgspec.DecodeError:
                document = json.loads(content)  # slower; takes NaN, which other programs write, and keys of other types
        except ValueError as error:
            return error
        return document if isinstance(document, dict) else ValueError("not a JSON object")


def _newer(document: dict[str, Any]) -> str | None:
    """Why a document of this schema is not read; None when it is. One without a schema is older than schemas."""
    schema = document.get("schema")
    if schema is None or (type(schema) is int and schema <= SCHEMA_VERSION):
        return None
    return f"schema {schema!r}, this agentx reads up to {SCHEMA_VERSION}: update agentx"


def _why_unfinished(folder: Place, names: frozenset[str]) -> str:
    if names.isdisjoint(_JOURNALS):
        return f"not finished: no {SUMMARY} and no journal"
    if isinstance(folder, Remote):
        return "not finished: only its journal is there; run `agentx recover` on it and copy it again"
    return f"not finished: it still goes on, or was killed (`agentx recover {folder}`)"
