"""Where keys come from: the environment or a file; never a flag's value, which the process list would show."""

from __future__ import annotations

import os
from pathlib import Path

from replay.endpoint import read_headers
from results.errors import UserError

API_KEY_VARIABLES = ("AGENTX_API_KEY", "OPENAI_API_KEY")
HEADERS_VARIABLE = "AGENTX_HEADERS_FILE"


def read_api_key(file: Path | None) -> str | None:
    """The API key from a file or the environment. UserError when the file can't be read."""
    if file is not None:
        try:
            return file.read_text().strip()
        except OSError as error:
            raise UserError(f"--api-key-file {file}: {error.strerror}") from error
    return next((os.environ[name] for name in API_KEY_VARIABLES if os.environ.get(name)), None)


def headers_file(given: Path | None) -> Path | None:
    """The file of further headers: the one given, else the one that AGENTX_HEADERS_FILE names."""
    return given or (Path(named) if (named := os.environ.get(HEADERS_VARIABLE)) else None)


def control_headers() -> dict[str, str]:
    """API key and further headers of the environment, for requests beside the load. UserError as `read_headers`."""
    key, file = read_api_key(None), headers_file(None)
    return ({"authorization": f"Bearer {key}"} if key else {}) | dict(read_headers(file) if file else ())
