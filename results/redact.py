"""Error texts made safe to keep: one short line, without anything that looks like a key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

_PATTERNS = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]+"), r"\1 …"),
    (
        re.compile(
            r"(?i)((?:api[_-]?key|access[_-]?token|auth[_-]?token|secret|password|cookie|key)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]+"
        ),
        r"\1…",
    ),
    (re.compile(r"(?i)([?&;][\w.-]*(?:token|sig|signature|auth|credential)[\w.-]*=)[^&\s\"'#]+"), r"\1…"),
    (re.compile(r"(?i)((?:cookie|authorization)[\"']?\s*[:=]\s*[\"']?)[^\"'\r\n]+"), r"\1…"),
    (re.compile(r"://[^/\s?#]+@"), "://…@"),
    (re.compile(r"\bsk-[\w-]{8,}"), "sk-…"),
)
_READ = 4096
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """One line without credentials: neither one of `secrets` nor what has the shape of one."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "…")
    line = _CONTROL.sub(" ", text).strip()
    for pattern, replacement in _PATTERNS:
        line = pattern.sub(replacement, line)
    return line


def url_secrets(url: str) -> tuple[str, ...]:
    """The password of a URL, as written and decoded: a client's error text may show either."""
    try:
        userinfo = urlsplit(url).netloc.rpartition("@")[0]
    except ValueError:
        return ()
    password = userinfo.partition(":")[2] or userinfo
    return tuple(dict.fromkeys(text for text in (userinfo, password, unquote(password)) if text))


def beginning(text: str) -> str:
    """As much of an error as anything is kept of, and no half of a word: it could be half of a key.

    To blot keys out of the whole of a server's 10 MB would hold up the answers of the others for a second (P126).
    """
    return text if len(text) <= _READ else text[:_READ].rpartition(" ")[0] or text[:_READ]


def cut(text: str, size: int) -> bytes:
    """`text` as UTF-8 of at most `size` bytes, cut between characters."""
    data = text.encode("utf-8", "replace")
    return data if len(data) <= size else data[:size].decode("utf-8", "ignore").encode()
