"""Finished runs copied to another place: an object store that fsspec knows, or a mounted folder."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from results.dataset import MANIFEST, SUMMARY
from results.errors import UserError
from results.places import Place, Remote, one_line, place
from results.redact import redact, url_secrets


@dataclass(frozen=True, slots=True)
class Destination:
    """A folder or prefix that takes run directories. Its text form has no credentials."""

    where: Place

    @classmethod
    def parse(cls, url: str) -> Destination:
        """What `--upload` names.

        UserError for a URL with a query, or whose store has no client here: before the run, not after it.
        """
        if "://" in url and ("?" in url or "#" in url):
            shown = redact(url.replace("#", "?").partition("?")[0])
            raise UserError(
                f"--upload {shown} has a query", remedy="give the store's credentials by its own environment or files"
            )
        try:
            return cls(place(url))
        except UserError as error:
            raise UserError(f"--upload {error}") from error

    def __str__(self) -> str:
        return str(self.where)

    def below(self, name: str) -> Destination:
        """A folder of this one."""
        return Destination(self.where / name)

    def send(self, directory: Path) -> str | None:
        """Copy a run directory to `<destination>/<its name>`, over what is there; why it could not be, in one line.

        summary.json goes last: a copy that broke off is not taken for a run. Ctrl-C ends the copy, not the program.
        """
        target = self.where / directory.name
        try:
            for file in _summary_last(directory):
                _copy(file, target, file.relative_to(directory).parts)
        except KeyboardInterrupt:
            return self._failed("stopped")
        except Exception as error:  # each store's client has errors of its own; none may harm the run
            return self._failed(one_line(error))
        return None

    def has(self, name: str) -> bool | str:
        """Whether the run of this name is there whole; one line on why that can't be told."""
        try:
            return (self.where / name / SUMMARY).is_file()
        except KeyboardInterrupt:
            return self._failed("stopped")
        except Exception as error:
            return self._failed(one_line(error))

    def by_hand(self, directory: Path) -> str:
        """The command that copies a run there later."""
        if isinstance(self.where, Path):
            return shlex.join(["cp", "-r", str(directory), f"{self.where}/"])
        there, here = json.dumps(str(self)), json.dumps(str(directory))
        code = f'import fsspec; fs, to = fsspec.url_to_fs({there}); fs.put({here}, to + "/", recursive=True)'
        return f"python3 -c {shlex.quote(code)}"

    def _failed(self, why: str) -> str:
        secrets = url_secrets(self.where.url) if isinstance(self.where, Remote) else ()
        return f"--upload {self} failed: {redact(why, secrets)}"


def _summary_last(directory: Path) -> Iterator[Path]:
    late = {MANIFEST: 1, SUMMARY: 2}
    files = [path for path in directory.rglob("*") if path.is_file()]
    yield from sorted(files, key=lambda path: (late.get(path.name, 0), path))


def _copy(file: Path, target: Place, parts: tuple[str, ...]) -> None:
    for part in parts:
        target = target / part
    if isinstance(target, Remote):
        target.fs.put_file(str(file), target.url)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
