"""Where `--prices` comes from: a list that ships, a user's file, or OpenRouter's models route."""

from __future__ import annotations

import datetime
from pathlib import Path

from results.errors import EXIT_ENDPOINT, UserError
from results.price_list import Listed, pick, read_file, shipped

OPENROUTER_MODELS = "https://openrouter.ai/api/v1/models"
_TIMEOUT_S = 10.0


def find_prices(text: str, *, as_of: datetime.date | None = None, source: str | None = None) -> Listed:
    """`NAME`, `FILE.toml`, `FILE.toml:NAME` or `openrouter:AUTHOR/MODEL`; UserError when there is no such price."""
    origin = f"--prices {text}"
    if text.startswith("openrouter:"):
        return from_openrouter(text.removeprefix("openrouter:"), as_of=as_of)
    if text in shipped():
        return pick(shipped(), text, origin, as_of=as_of, source=source)
    path, colon, name = text.rpartition(":")
    if colon and path.endswith(".toml"):
        return pick(read_file(Path(path)), name, origin, as_of=as_of, source=source)
    if text.endswith(".toml") or Path(text).is_file():
        return pick(read_file(Path(text)), None, origin, as_of=as_of, source=source)
    raise UserError(
        origin, remedy=f"choose one of: {', '.join(shipped())}; or a .toml file; or openrouter:AUTHOR/MODEL"
    )


def from_openrouter(model: str, *, as_of: datetime.date | None = None, url: str = OPENROUTER_MODELS) -> Listed:
    """The price that OpenRouter lists now; UserError when it can't be reached or has none."""
    import httpx

    from results.openrouter import list_price

    today = datetime.datetime.now(datetime.UTC).date()
    if as_of is not None and as_of < today:
        raise UserError(f"--prices openrouter:{model}: OpenRouter gives today's price only", remedy="leave out --as-of")
    try:
        answer = httpx.get(url, timeout=_TIMEOUT_S, follow_redirects=True)
        answer.raise_for_status()
        document = answer.json()
    except httpx.HTTPStatusError as error:
        raise _unreachable(url, f"status {error.response.status_code}") from error
    except (httpx.HTTPError, ValueError, RecursionError) as error:  # a body that is not JSON is a ValueError
        raise _unreachable(url, f"{type(error).__name__}: {error}") from error
    return Listed(f"openrouter:{model}", list_price(document, model, source=url, date=today.isoformat()))


def _unreachable(url: str, why: str) -> UserError:
    reason = " ".join(why.split())
    return UserError(f"{url}: {reason}", remedy="write the prices to a file: --prices FILE", exit_code=EXIT_ENDPOINT)
