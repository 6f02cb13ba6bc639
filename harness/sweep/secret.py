"""Which texts of a sweep must never be written anywhere, and commands shown without them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from harness.credentials import control_headers
from replay.endpoint import header_secrets
from results.redact import redact

_SECRET_NAME = re.compile(
    r"(?i)(^|[-_])(api[-_]?keys?|keys?|tokens?|secrets?|passwords?|passwd|credentials?|authorization|cookie|auth)$"
)
_NOT_SECRET = re.compile(r"(?i)max|enable|prompt|output|num|len|budget|size|ratio|count|kv")
_SHORTEST = 4
"""A shorter value hides nothing, and replacing it would spoil every log."""
_USERINFO = re.compile(r"://([^/\s@]+)@")
_HEADER = re.compile(r"(?i)^([\w-]+):\s*(?:(?:bearer|basic)\s+)?(\S.*)$")
_QUERY = re.compile(r"(?i)[?&](?:[\w-]*(?:key|token|secret|password|auth))=([^&\s]+)")


def is_secret_name(name: str) -> bool:
    """Whether a flag or variable of this name carries a credential (`--api-key`, `HF_TOKEN`)."""
    bare = name.lstrip("-")
    return bool(_SECRET_NAME.search(bare)) and not _NOT_SECRET.search(bare)


def find_secrets(
    commands: Iterable[Sequence[str]], env: Mapping[str, str], urls: Iterable[str], api_key: str | None
) -> list[str]:
    """Values to keep out of every file: the API key, credentials of the environment, of flags, headers and URLs."""
    found = {api_key or "", *header_secrets(control_headers().items())}
    for source in (os.environ, env):
        found.update(value for name, value in source.items() if is_secret_name(name))
    for command in commands:
        for flag, value in zip(command, [*command[1:], ""], strict=True):
            name, equals, inline = flag.partition("=")
            if not is_secret_name(name) or (not flag.startswith("-") and not equals):
                continue
            if equals:
                found.add(inline)
            elif not value.startswith("-"):
                found.add(value)
    for text in [*urls, *(word for command in commands for word in command)]:
        for userinfo in _USERINFO.findall(text):
            found.update((userinfo, *userinfo.split(":", 1)[1:]))
        found.update(_QUERY.findall(text))
        if (header := _HEADER.match(text)) and is_secret_name(header[1]):
            found.add(header[2].strip())
    return sorted(secret for secret in found if len(secret) >= _SHORTEST)


def shown(command: Sequence[str], secrets: Sequence[str]) -> list[str]:
    """A command fit for a file or a terminal."""
    return [redact(word, secrets) for word in command]
