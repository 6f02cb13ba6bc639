"""A page fetched for what it says, with one kept connection and errors that are reasons."""

from __future__ import annotations

from typing import Any

from collectors.power.source import TIMEOUT_S, SourceError
from results.redact import redact

MAX_BYTES = 64 << 20


class Page:
    """GET requests to one server. `auth` and `token` go into headers, never into error texts."""

    def __init__(self, *, token: str | None = None, auth: tuple[str, str] | None = None) -> None:
        import httpx

        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._errors = httpx.HTTPError, httpx.InvalidURL
        self._secrets = [secret for secret in (token, *(auth or ())) if secret]
        # A proxy of the environment never leads back to this machine, whatever NO_PROXY says.
        direct = {f"all://{host}": None for host in ("localhost", "127.0.0.1", "[::1]")}
        self._client = httpx.Client(timeout=TIMEOUT_S, headers=headers, auth=auth, follow_redirects=True, mounts=direct)

    def text(self, url: str) -> str:
        """The body; SourceError with the reason when there is none."""
        try:
            response = self._client.get(url)
            if not response.is_success:
                raise SourceError(redact(f"{url}: HTTP {response.status_code}", self._secrets))
            if len(response.content) > MAX_BYTES:
                raise SourceError(redact(f"{url}: a page of more than {MAX_BYTES >> 20} MiB", self._secrets))
            return response.text
        except self._errors as error:
            reason = str(error) or type(error).__name__
            raise SourceError(redact(f"{url}: {reason}", self._secrets)) from error

    def json(self, url: str) -> Any:
        """The body as JSON; SourceError when it is none."""
        import json

        text = self.text(url)
        try:
            return json.loads(text)
        except ValueError as error:
            raise SourceError(redact(f"{url}: not JSON", self._secrets)) from error

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
