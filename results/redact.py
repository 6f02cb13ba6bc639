"""Error texts made safe to keep: one short line, without anything that looks like a key."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PATTERNS = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]+"), r"\1 …"),
    (
        re.compile(
            r"(?i)((?:api[_-]?key|access[_-]?token|auth[_-]?token|secret|password|cookie|key)[\"']?\s*[=:]\s*[\"']?)[^\s\"'&,;]+"
        ),
        r"\1…",
    ),
    (re.compile(r"://[^/\s@]+@"), "://…@"),
    (re.compile(r"\bsk-[\w-]{8,}"), "sk-…"),
)
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


def cut(text: str, size: int) -> bytes:
    """`text` as UTF-8 of at most `size` bytes, cut between characters."""
    data = text.encode("utf-8", "replace")
    return data if len(data) <= size else data[:size].decode("utf-8", "ignore").encode()
