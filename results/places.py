"""Where a run directory is: a local folder, or a prefix of an object store that fsspec knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from results.errors import UserError
from results.redact import redact, url_secrets


@dataclass(frozen=True, slots=True)
class Remote:
    """A folder or file of an object store, with what the readers use of `pathlib.Path`."""

    url: str
    """`s3://bucket/runs/A`: without a slash at the end."""
    fs: Any = field(compare=False, repr=False)
    """The fsspec file system."""

    @property
    def name(self) -> str:
        """The last part."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> Remote:
        """The folder above."""
        return Remote(self.url.rpartition("/")[0], self.fs)

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.url}/{name}", self.fs)

    def __str__(self) -> str:
        return redact(self.url)

    def is_file(self) -> bool:
        """Whether there is an object of this name."""
        return bool(self.fs.isfile(self.url))

    def read_bytes(self) -> bytes:
        """The whole object; FileNotFoundError, OSError and what the store's own client raises."""
        content: bytes = self.fs.cat_file(self.url)
        return content

    def open(self) -> Any:
        """A seekable binary file, to read."""
        return self.fs.open(self.url, "rb")


Place = Path | Remote


def place(text: str | Path) -> Place:
    """A path, or a URL such as `s3://bucket/prefix`.

    UserError when fsspec or the store's client is missing, or the URL can't be used.
    """
    if isinstance(text, Path):
        return text
    scheme, mark, rest = text.partition("://")
    if not mark:
        return Path(text)
    if scheme in ("file", "local"):
        return Path(rest)
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise UserError(
            f"{redact(text)}: object stores need fsspec", remedy="pip install 'agentx-live[analysis]'"
        ) from error
    try:
        fs, _ = url_to_fs(text)
    except (ImportError, ValueError, OSError) as error:
        why = redact(one_line(error), url_secrets(text))
        raise UserError(f"{redact(text)}: {why}", remedy="fsspec's page names the client of each store") from error
    return Remote(text.rstrip("/"), fs)


def parquet_source(where: Place) -> Any:
    """What pyarrow reads a Parquet file from."""
    return where if isinstance(where, Path) else where.open()


def printable(where: Place | str) -> str:
    """The location as text; a name that is no UTF-8 can't be a value of a table or a line of a terminal."""
    return str(where).encode("utf-8", "backslashreplace").decode()


def one_line(error: BaseException) -> str:
    """The error's text without line breaks, its type where it has none."""
    return printable(" ".join(str(error).split())) or type(error).__name__
