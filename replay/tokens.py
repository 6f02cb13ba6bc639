"""How many tokens the server counts, and which words are exactly one of them. No tokenizer is downloaded.

Three sources: a directory with the tokenizer's own files, the server's tokenize route, or the usage it reports for tiny
requests. All offer the same two counts, so that words are found in the same way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import httpx

from replay.messages import message
from replay.wordlist import candidates
from replay.words import WordTable
from results.errors import EXIT_ENDPOINT, UserError

WANTED_WORDS = 128
MINIMUM_WORDS = 64
_GROUP = 16
_PROBE_WORDS = 2_000


class TextCounter(Protocol):
    """Counts the tokens of a text."""

    name: str

    def count_text(self, text: str) -> int:
        """Tokens of `text` alone, without what surrounds every prompt."""


class TokenCounter(TextCounter, Protocol):
    """Counts as the server does, messages too."""

    def count_messages(self, messages: Sequence[dict[str, Any]]) -> int:
        """Prompt tokens that the server would count for `messages`, generation prompt included.

        Raises Refused when it does not take them.
        """


class Refused(Exception):
    """The server does not take a request (4xx or 5xx); `status` is its answer's."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class UsageCounter:
    """Counts by asking for one token and reading `usage.prompt_tokens`: works with every server."""

    name = "usage"

    def __init__(self, http: httpx.Client, model: str) -> None:
        self._http = http
        self._model = model
        self._base: int | None = None
        self.requests = self.prompt_tokens = self.output_tokens = self.cached_tokens = 0
        """What the probe itself has cost the server, by its own usage."""

    def count_messages(self, messages: Sequence[dict[str, Any]]) -> int:
        """See TokenCounter."""
        counted = self.ask({"messages": list(messages), "max_tokens": 1})
        if counted is None:
            raise UserError(
                "the endpoint reports no usage, so prompt tokens can't be known",
                remedy="switch usage on at the server",
                exit_code=EXIT_ENDPOINT,
            )
        return counted

    def ask(self, fields: dict[str, Any]) -> int | None:
        """Send a chat completion that does not stream; its prompt tokens, None without usage. Raises Refused."""
        response = _post(self._http, "/v1/chat/completions", {"model": self._model, "stream": False, **fields})
        self.requests += 1
        try:
            usage = response.json()["usage"]
            prompt, output = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
        except (ValueError, KeyError, TypeError):
            return None
        self.prompt_tokens += prompt
        self.output_tokens += output
        details = usage.get("prompt_tokens_details")
        self.cached_tokens += (details.get("cached_tokens") or 0) if isinstance(details, dict) else 0
        return prompt

    def count_text(self, text: str) -> int:
        """Tokens of a user message's content. What the template adds is the same twice, so it falls out."""
        if self._base is None:
            once = " the of and to in"
            self._base = 2 * self._user(once) - self._user(once + once)
        return self._user(text) - self._base

    def _user(self, text: str) -> int:
        return self.count_messages([message("user", text)])


class ServerCounter:
    """Counts with the server's tokenize route, which applies its own chat template."""

    def __init__(self, http: httpx.Client, model: str, route: str, fallback: UsageCounter) -> None:
        self.name = f"server ({route})"
        self._http = http
        self._model = model
        self._route = route
        self._usage = fallback
        self._takes_messages = True

    @classmethod
    def detect(cls, http: httpx.Client, model: str, usage: UsageCounter) -> ServerCounter | None:
        """The counter of a server that has a tokenize route, else None."""
        for route in ("/tokenize", "/v1/tokenize"):
            counter = cls(http, model, route, usage)
            try:
                if counter.count_text(" the of") > 0:
                    return counter
            except (Refused, UserError):
                continue
        return None

    def count_text(self, text: str) -> int:
        """See TextCounter."""
        return self._count({"prompt": text, "add_special_tokens": False})

    def count_messages(self, messages: Sequence[dict[str, Any]]) -> int:
        """See TokenCounter; a route that takes only text is completed by the usage of a tiny request."""
        if self._takes_messages:
            try:
                return self._count({"messages": list(messages), "add_generation_prompt": True})
            except Refused:
                self._takes_messages = False
        return self._usage.count_messages(messages)

    def _count(self, fields: dict[str, Any]) -> int:
        response = _post(self._http, self._route, {"model": self._model, **fields})
        try:
            return int(response.json()["count"])
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"{self._route}: no count in the answer") from error


class LocalCounter:
    """Counts text with tokenizer files in a directory. Messages are the server's to count."""

    def __init__(self, name: str, encode: Callable[[str], Sequence[int]]) -> None:
        self.name = name
        self._encode = encode

    def count_text(self, text: str) -> int:
        """See TextCounter."""
        return len(self._encode(text))

    @classmethod
    def load(cls, directory: str | Path) -> LocalCounter:
        """Read `tokenizer.json` or `tekken.json`. UserError names what is missing."""
        folder = Path(directory)
        if not folder.is_dir():
            raise UserError(f"--tokenizer {directory}: no such directory", remedy="give a directory, server or usage")
        if (folder / "tokenizer.json").is_file():
            return cls._fast(folder / "tokenizer.json")
        if (folder / "tekken.json").is_file():
            return cls._tekken(folder / "tekken.json")
        raise UserError(
            f"--tokenizer {directory}: neither tokenizer.json nor tekken.json there",
            remedy="use --tokenizer server or usage, which need no files",
        )

    @classmethod
    def _fast(cls, path: Path) -> LocalCounter:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise UserError(
                f"--tokenizer {path.parent} needs the tokenizers package",
                remedy="pip install 'agentx-live[tokenizer]', or use --tokenizer server or usage",
            ) from error
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"--tokenizer {path}: {error}", remedy="is it a complete tokenizer.json?") from error
        return cls(f"directory {path.parent}", lambda text: tokenizer.encode(text, add_special_tokens=False).ids)

    @classmethod
    def _tekken(cls, path: Path) -> LocalCounter:
        try:
            from mistral_common.tokens.tokenizers.tekken import Tekkenizer
        except ImportError as error:
            raise UserError(
                f"--tokenizer {path.parent} needs the mistral-common package",
                remedy="pip install mistral-common, or use --tokenizer server or usage",
            ) from error
        tokenizer = Tekkenizer.from_file(path)
        return cls(f"directory {path.parent}", lambda text: tokenizer.encode(text, bos=False, eos=False))


def _post(http: httpx.Client, route: str, fields: dict[str, Any]) -> httpx.Response:
    try:
        response = http.post(route, json=fields)
    except httpx.HTTPError as error:
        raise UserError(
            f"POST {route}: {error or type(error).__name__}", remedy="look at the server's log", exit_code=EXIT_ENDPOINT
        ) from error
    if response.status_code >= 400:
        raise Refused(f"POST {route}: HTTP {response.status_code}: {response.text[:200]}", response.status_code)
    return response


class Unmeasurable(UserError):
    """The server's counts are no token counts of our words: prompts can be sent, their sizes can't be promised."""


def common_words() -> WordTable:
    """Words that are one token in every large vocabulary known to us: the best guess where nothing can be counted."""
    return WordTable(tuple(f" {word}" for word in candidates()[0][:WANTED_WORDS]))


def find_words(counter: TextCounter) -> WordTable:
    """Words of one length that are each one token, with and without a leading space, in any sequence.

    The same words for the same tokenizer on every machine. Unmeasurable when there are fewer than 64.
    """
    best: list[str] = []
    for group in candidates():
        good = _single_tokens(counter, group)
        best = max(best, good, key=len)
        if len(best) >= WANTED_WORDS:
            break
    if len(best) < MINIMUM_WORDS:
        raise Unmeasurable(
            f"only {len(best)} words are one token by {counter.name}, {MINIMUM_WORDS} are needed",
            remedy="is this the tokenizer of a text model? try --tokenizer DIR",
        )
    table = WordTable(tuple(f" {word}" for word in best))
    verify_words(counter, table)
    return table


def _single_tokens(counter: TextCounter, words: Sequence[str]) -> list[str]:
    """The first WANTED_WORDS good ones, found by halving groups whose counts are too high."""
    good: list[str] = []
    for low in range(0, len(words), _GROUP):
        if len(good) >= WANTED_WORDS:
            break
        good += _halve(counter, words[low : low + _GROUP], None)
    return good[:WANTED_WORDS]


def _halve(counter: TextCounter, words: Sequence[str], excess: int | None) -> list[str]:
    """Good words among `words`, whose total excess of tokens may be known already."""
    if excess is None:
        excess = _excess(counter, words)
    if excess == 0:
        return list(words)
    if len(words) == 1:
        return []
    middle = len(words) // 2
    left = _excess(counter, words[:middle])
    return _halve(counter, words[:middle], left) + _halve(counter, words[middle:], excess - left)


def _excess(counter: TextCounter, words: Sequence[str]) -> int:
    """Tokens beyond one per word, for the words with a space ahead and then, a line each, without: one count for both.

    Excesses can't hide each other: neither a word nor a line end is less than one token.
    """
    text = "".join(f" {word}" for word in words) + "".join(f"\n{word}" for word in words)
    return counter.count_text(text) - 3 * len(words)


def verify_words(counter: TextCounter, table: WordTable) -> None:
    """Count 2,000 words of the table; Unmeasurable with both numbers when the count is another."""
    chosen = random.Random(1).choices(table.words, k=_PROBE_WORDS)
    counted = counter.count_text("".join(chosen))
    if counted != _PROBE_WORDS:
        raise Unmeasurable(
            f"{_PROBE_WORDS} one-token words are {counted} tokens by {counter.name}",
            remedy="the tokenizer given is not the server's: use --tokenizer server or usage",
        )
