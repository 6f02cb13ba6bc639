"""Documents in files, folders and archives, one at a time: memory does not grow with the corpus.

What comes in may be damaged or hostile. Whatever is wrong with one document costs that document (or, where an archive's
own structure is broken, the rest of that archive), and is said by name.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from results.errors import UserError

if TYPE_CHECKING:
    from typing import Self

MAX_DOCUMENT_BYTES = 256 << 20
"""A single trace larger than this after unpacking is refused: it is a bomb or no trace."""
MAX_HEADER_BYTES = 1 << 20
"""The same for a tar member's extended header, which is read in one piece."""
MAX_NAME = 200
"""Characters of a document's name that are shown; the end tells more than the beginning."""

_SUFFIXES = (".json", ".jsonl")
_PACKED = (".gz", ".zst")
_PIECE = 1 << 20
_BROKEN = (
    OSError,  # also BadGzipFile, and all that the zstd reader says
    EOFError,
    ValueError,
    RuntimeError,  # encrypted zip members; NotImplementedError: compression methods nobody has
    OverflowError,
    struct.error,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
)


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
        return sum(path.stat().st_size for path in _walk(source)[0] if os.path.isfile(path))
    return source.stat().st_size


def documents(source: Path) -> Iterator[Document]:
    """Every JSON document of `source`, in name order within a folder and in file order within an archive.

    UserError when `source` itself is missing or of an unknown kind.
    """
    if not os.path.exists(source):
        raise UserError(f"{source}: no such file or folder")
    if source.is_dir():
        yield from _folder(source)
        return
    if not source.is_file() or not (_is_document(source.name) or _is_archive(source.name)):
        raise UserError(
            f"{source}: unknown kind of file",
            remedy="give a folder, .json, .jsonl (also .gz, .zst), .zip or .tar[.gz|.zst]",
        )
    yield from _file(source, printable(source.name))


def printable(name: str) -> str:
    """`name` on one line that any terminal and any encoding can show, cut at the front."""
    cut = name if len(name) <= MAX_NAME else "…" + name[-MAX_NAME:]
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in cut)


def _folder(folder: Path) -> Iterator[Document]:
    done = 0
    paths, problems = _walk(folder)
    for error in problems:
        yield Document(printable(os.path.relpath(error.filename, folder)), b"", _reason(error))
    for path in paths:
        name = printable(path.relative_to(folder).as_posix())
        # Opening a pipe would wait for ever. Links to files are followed: download caches consist of them.
        if not os.path.isfile(path):
            yield Document(name, b"", "no regular file", done)
            continue
        done += path.stat().st_size
        for document in _file(path, name):
            yield Document(document.name, document.data, document.problem, done)


def _walk(folder: Path) -> tuple[list[Path], list[OSError]]:
    """Trace files below `folder` (links to folders are not entered: they may lead in a circle), unreadable folders."""
    found: list[Path] = []
    problems: list[OSError] = []
    for parent, folders, names in os.walk(folder, onerror=problems.append):
        folders.sort()
        found += [Path(parent, name) for name in sorted(names) if _is_document(name) or _is_archive(name)]
    return found, problems


def _stem(name: str) -> str:
    lower = name.lower()
    for suffix in _PACKED:
        if lower.endswith(suffix):
            return lower[: -len(suffix)]
    return lower


def _is_document(name: str) -> bool:
    return _stem(name).endswith(_SUFFIXES)


def _is_archive(name: str) -> bool:
    return name.lower().endswith((".zip", ".tgz")) or _stem(name).endswith(".tar")


def _file(path: Path, name: str) -> Iterator[Document]:
    try:
        with path.open("rb") as file:
            if path.name.lower().endswith(".zip"):
                yield from _zip(file, name)
            elif _is_archive(path.name):
                yield from _tar(file, path.name, name)
            else:
                yield from _lines_or_whole(_unpacked(file, path.name), path.name, name, file)
    except _BROKEN as error:
        yield Document(name, b"", _reason(error))


def _reason(error: BaseException) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error).strip()
    return printable(text.splitlines()[0]) if text else type(error).__name__


def _unpacked(file: IO[bytes], name: str) -> IO[bytes]:
    if name.lower().endswith((".gz", ".tgz")):
        unzipped: IO[bytes] = gzip.open(file)  # type: ignore[assignment]  # noqa: SIM115 (closed with its file)
        return unzipped
    if name.lower().endswith(".zst"):
        # This reader takes many frames, and tells a truncated file from one that ends.
        from pyarrow import CompressedInputStream

        return io.BufferedReader(CompressedInputStream(file, "zstd"), _PIECE)
    return file


def _lines_or_whole(stream: IO[bytes], kind: str, name: str, position: IO[bytes]) -> Iterator[Document]:
    """Documents of a stream; `kind` is the file name that tells how to read it, `name` the one to show."""
    if not _stem(kind).endswith(".jsonl"):
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
    data = bytearray()  # piece by piece: one large read would claim the whole limit beforehand
    while piece := stream.read(_PIECE):
        data += piece
        if len(data) > MAX_DOCUMENT_BYTES:
            return Document(name, b"", f"larger than {MAX_DOCUMENT_BYTES:,} bytes", position.tell())
    return Document(name, bytes(data), None, position.tell())


class _Header(tarfile.TarInfo):
    """A member header that refuses to be a bomb."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        extended = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
        if header.type in extended and header.size > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a member header of {header.size:,} bytes")
        return header


def _tar(file: IO[bytes], kind: str, name: str) -> Iterator[Document]:
    with tarfile.open(fileobj=_unpacked(file, kind), mode="r|", tarinfo=_Header) as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # else it remembers all it has passed
            label = f"{name}!{printable(member.name)}"
            if member.isdir() or not (_is_document(member.name) or _is_archive(member.name)):
                continue
            stream = archive.extractfile(member) if member.isfile() and _is_document(member.name) else None
            if stream is None:
                problem = "an archive within an archive" if member.isfile() else "no regular file"
                yield Document(label, b"", problem, file.tell())
                continue
            yield from _member(stream, member.name, label, file)


def _zip(file: IO[bytes], name: str) -> Iterator[Document]:
    with zipfile.ZipFile(file) as archive:
        for entry in archive.infolist():
            label = f"{name}!{printable(entry.filename)}"
            if entry.is_dir() or not (_is_document(entry.filename) or _is_archive(entry.filename)):
                continue
            if not _is_document(entry.filename):
                yield Document(label, b"", "an archive within an archive", file.tell())
                continue
            try:
                with archive.open(entry) as stream:
                    yield from _member(stream, entry.filename, label, file)
            except _BROKEN as error:
                yield Document(label, b"", _reason(error), file.tell())


def _member(stream: IO[bytes], kind: str, label: str, position: IO[bytes]) -> Iterator[Document]:
    """A member that can't be unpacked costs itself only; that its archive can't be read is the caller's."""
    unpacks = kind.lower().endswith(_PACKED)
    try:
        yield from _lines_or_whole(_unpacked(stream, kind), kind, label, position)
    except _BROKEN as error:
        if not unpacks:
            raise
        yield Document(label, b"", _reason(error), position.tell())
