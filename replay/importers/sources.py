"""Documents in files, folders and archives, one at a time: memory does not grow with the corpus."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import zstandard

from results.errors import UserError

MAX_DOCUMENT_BYTES = 1 << 30
"""A single trace larger than this after unpacking is refused: it is a bomb or no trace."""

_SUFFIXES = (".json", ".jsonl")
_PACKED = (".gz", ".zst")


@dataclass(frozen=True, slots=True)
class Document:
    """One JSON text, or the reason why it can't be read. `name` says where it came from (line included)."""

    name: str
    data: bytes
    problem: str | None = None
    progress: int = 0
    """Bytes of the source consumed so far, in the unit of `source_bytes`."""


def source_bytes(source: Path) -> int:
    """Size of the source on disk, the whole of the progress bar."""
    if source.is_dir():
        return sum(path.stat().st_size for path in _files(source))
    return source.stat().st_size


def documents(source: Path) -> Iterator[Document]:
    """Every JSON document of `source`, in name order within a folder and in file order within an archive.

    UserError when `source` itself is missing or of an unknown kind.
    """
    if not source.exists():
        raise UserError(f"{source}: no such file or folder")
    if source.is_dir():
        done = 0
        for path in _files(source):
            done += path.stat().st_size
            for document in _file(path, path.relative_to(source).as_posix()):
                yield Document(document.name, document.data, document.problem, done)
        return
    if not _is_document(source.name) and not _is_archive(source.name):
        raise UserError(
            f"{source}: unknown kind of file",
            remedy="give a folder, .json, .jsonl (also .gz, .zst), .zip or .tar[.gz|.zst]",
        )
    yield from _file(source, source.name)


def _files(folder: Path) -> list[Path]:
    """Trace files below `folder`, links out of it left alone."""
    found = []
    for parent, folders, names in os.walk(folder):
        folders.sort()
        found += [
            Path(parent, name)
            for name in sorted(names)
            if (_is_document(name) or _is_archive(name)) and not Path(parent, name).is_symlink()
        ]
    return found


def _stem(name: str) -> str:
    for suffix in _PACKED:
        if name.endswith(suffix):
            return name[: -len(suffix)]
    return name


def _is_document(name: str) -> bool:
    return _stem(name).endswith(_SUFFIXES)


def _is_archive(name: str) -> bool:
    return name.endswith((".zip", ".tgz")) or _stem(name).endswith(".tar")


def _file(path: Path, name: str) -> Iterator[Document]:
    try:
        with path.open("rb") as file:
            if name.endswith(".zip"):
                yield from _zip(file, name)
            elif _is_archive(name):
                yield from _tar(file, name)
            else:
                yield from _lines_or_whole(_unpacked(file, name), name, file)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError, tarfile.TarError, zipfile.BadZipFile) as error:
        yield Document(name, b"", _reason(error))


def _reason(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _unpacked(file: IO[bytes], name: str) -> IO[bytes]:
    if name.endswith((".gz", ".tgz")):
        unzipped: IO[bytes] = gzip.open(file)  # type: ignore[assignment]  # noqa: SIM115 (closed with its file)
        return unzipped
    if name.endswith(".zst"):
        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(file), 1 << 20)
    return file


def _lines_or_whole(stream: IO[bytes], name: str, position: IO[bytes]) -> Iterator[Document]:
    if not _stem(name).endswith(".jsonl"):
        yield _bounded(stream, name, position)
        return
    number = 0
    while line := stream.readline(MAX_DOCUMENT_BYTES + 1):
        number += 1
        if len(line) > MAX_DOCUMENT_BYTES:
            yield Document(f"{name}:{number}", b"", f"line longer than {MAX_DOCUMENT_BYTES:,} bytes")
            return
        if line.strip():
            yield Document(f"{name}:{number}", line, None, position.tell())


def _bounded(stream: IO[bytes], name: str, position: IO[bytes]) -> Document:
    data = stream.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        return Document(name, b"", f"larger than {MAX_DOCUMENT_BYTES:,} bytes", position.tell())
    return Document(name, data, None, position.tell())


def _tar(file: IO[bytes], name: str) -> Iterator[Document]:
    with tarfile.open(fileobj=_unpacked(file, name), mode="r|") as archive:
        for member in archive:
            if not member.isfile() or not _is_document(member.name):
                continue
            stream = archive.extractfile(member)
            if stream is not None:
                yield from _member(stream, f"{name}!{member.name}", file)


def _zip(file: IO[bytes], name: str) -> Iterator[Document]:
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            if entry.is_dir() or not _is_document(entry.filename):
                continue
            with archive.open(entry) as stream:
                yield from _member(stream, f"{name}!{entry.filename}", file)


def _member(stream: IO[bytes], name: str, position: IO[bytes]) -> Iterator[Document]:
    """A member that can't be unpacked costs itself only."""
    try:
        yield from _lines_or_whole(_unpacked(stream, name), name, position)
    except (EOFError, zlib.error, zstandard.ZstdError, zipfile.BadZipFile, gzip.BadGzipFile) as error:
        yield Document(name, b"", _reason(error), position.tell())
