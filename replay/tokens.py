"""How many tokens the server counts, and which words are exactly one of them. No tokenizer is downloaded.

Three sources: a directory with the tokenizer's own files, the server's tokenize route, or the usage it reports for tiny
requests. Words are found by counts alone and in the same way from each, so the same tokenizer gives the same words.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import httpx

from replay.usage import Refused, Unmeasurable, UsageCounter, post
from replay.word_cache import load_words, save_words
from replay.word_search import MINIMUM_WORDS, WANTED_WORDS, TextSums, single_tokens, vocabulary_words
from replay.wordlist import candidates
from replay.words import WordTable
from results.errors import EXIT_ENDPOINT, UserError
from results.redact import redact

_SLOW_S = 0.5
_PROOF_WORDS = (97, 400, 1_500)
_MAX_ERROR_CHARS = 300


class TextCounter(Protocol):
    """Counts the tokens of a text."""

    name: str

    def count_text(self, text: str) -> int:
        """Tokens of `text`, plus a constant of the counter's own (BOS, a chat template): one per call, not per word."""


class TokenCounter(TextCounter, Protocol):
    """Counts as the server does, messages too."""

    def count_messages(self, messages: Sequence[dict[str, Any]]) -> int:
        """Prompt tokens that the server would count for `messages`, generation prompt included.

        Raises Refused when it does not take them.
        """


class ServerCounter:
    """Counts with the server's tokenize route, which applies its own chat template."""

    def __init__(self, http: httpx.Client, model: str, route: str, fallback: UsageCounter) -> None:
        self.name = f"server ({route})"
        self._http = http
        self._model = model
        self.route = route
        self._usage = fallback
        self._takes_messages: bool | None = None if fallback.renders_as_chat else False

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

    def ids(self, text: str) -> list[int]:
        """Token ids of `text` without any special token. Raises Refused where the route counts only."""
        answer = self._answer({"prompt": text, "add_special_tokens": False})
        found = answer.get("tokens")
        if not isinstance(found, list) or not all(isinstance(number, int) for number in found):
            raise Refused(f"{self.route}: no token ids in the answer")
        return found

    def count_messages(self, messages: Sequence[dict[str, Any]]) -> int:
        """See TokenCounter; by usage where the route takes only text, or renders messages unlike the chat route."""
        if self._takes_messages is None:
            self._takes_messages = self._agrees(messages)
            if not self._takes_messages:
                self.name += ", messages by usage"
        return self._count_chat(messages) if self._takes_messages else self._usage.count_messages(messages)

    def _agrees(self, messages: Sequence[dict[str, Any]]) -> bool:
        try:
            counted = self._count_chat(messages)
        except Refused:
            return False
        try:
            return counted == self._usage.count_messages(messages)
        except Unmeasurable:
            return True

    def _count_chat(self, messages: Sequence[dict[str, Any]]) -> int:
        return self._count({"messages": list(messages), "add_generation_prompt": True})

    def _count(self, fields: dict[str, Any]) -> int:
        try:
            return int(self._answer(fields)["count"])
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"{self.route}: no count in the answer") from error

    def _answer(self, fields: dict[str, Any]) -> dict[str, Any]:
        response = post(self._http, self.route, {"model": self._model, **fields})
        try:
            return dict(response.json())
        except (ValueError, TypeError) as error:
            raise Refused(f"{self.route}: the answer is no JSON object") from error


class LocalCounter:
    """Counts text with tokenizer files in a directory, read when first needed. Messages are the server's to count."""

    def __init__(self, path: Path, digest: str) -> None:
        self.name = f"directory {path.parent}"
        self.path = path
        self.digest = digest
        """Identity of the tokenizer: SHA-256 of its file, 64 hex digits."""
        self._encode: Callable[[str], Sequence[int]] | None = None
        self._vocabulary: Callable[[], list[str]] = list

    @classmethod
    def load(cls, directory: str | Path) -> LocalCounter:
        """The counter of a directory with `tokenizer.json` or `tekken.json`. UserError names what is missing."""
        folder = Path(directory)
        if not folder.is_dir():
            raise UserError(f"--tokenizer {directory}: no such directory", remedy="give a directory, server or usage")
        for name in ("tokenizer.json", "tekken.json"):
            path = folder / name
            if path.is_file():
                try:
                    return cls(path, hashlib.sha256(path.read_bytes()).hexdigest())
                except OSError as error:
                    raise UserError(f"--tokenizer {path}: {error.strerror}", remedy="make it readable") from error
        found = "only tokenizer.model, which is not read" if (folder / "tokenizer.model").is_file() else "neither is"
        raise UserError(
            f"--tokenizer {directory}: tokenizer.json or tekken.json is needed, {found} there",
            remedy="use --tokenizer server or usage, which need no files",
        )

    def count_text(self, text: str) -> int:
        """See TextCounter."""
        return len(self._open()(text))

    def ids(self, text: str) -> list[int]:
        """Token ids of `text` without any special token."""
        return list(self._open()(text))

    def vocabulary(self) -> list[str]:
        """All tokens as the file has them (a leading space is ` `, `Ġ` or `▁`), in the order of their ids."""
        self._open()
        return self._vocabulary()

    def _open(self) -> Callable[[str], Sequence[int]]:
        if self._encode is None:
            try:
                self._encode = self._fast() if self.path.name == "tokenizer.json" else self._tekken()
            except ImportError as error:
                raise UserError(
                    f"--tokenizer {self.path.parent}: {self.path.name} needs a package that is not there: {error}",
                    remedy="pip install 'agentx-live[tokenizer]' mistral-common, or use --tokenizer server or usage",
                ) from error
            except Exception as error:  # both libraries raise bare Exception, among others
                reason = redact(str(error))[:_MAX_ERROR_CHARS]
                raise UserError(f"--tokenizer {self.path}: {reason}", remedy="is the file complete?") from error
        return self._encode

    def _fast(self) -> Callable[[str], Sequence[int]]:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(self.path))
        self._vocabulary = lambda: sorted(vocabulary := tokenizer.get_vocab(), key=lambda token: vocabulary[token])
        return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)

    def _tekken(self) -> Callable[[str], Sequence[int]]:
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        tokenizer = Tekkenizer.from_file(self.path)
        self._vocabulary = lambda: list(tokenizer.vocab())
        return lambda text: list(tokenizer.encode(text, bos=False, eos=False))


class IdCounter(TextCounter, Protocol):
    """Says which tokens a text is."""

    def ids(self, text: str) -> list[int]:
        """Token ids of `text` without any special token. Raises Refused."""


def word_ids(counter: IdCounter, table: WordTable) -> WordTable:
    """The token ids of a table's words, as a table. Unmeasurable where the words are not those tokens."""
    with _refusals_said(counter):
        found = counter.ids("".join(table.words))
    if len(found) != len(table.words) or len(set(found)) != len(found):
        raise Unmeasurable(
            f"{len(table.words)} one-token words are {len(set(found))} different ids by {counter.name}",
            remedy="try --tokenizer DIR",
        )
    return WordTable.of_ids(found)


def common_words() -> WordTable:
    """Words that are one token in every large vocabulary known to us: the best guess where nothing can be counted."""
    return _table(candidates()[0])


def find_words(counter: TextCounter) -> WordTable:
    """Words of one length that are each one token, with and without a leading space, in any sequence.

    The same words for the same tokenizer on every machine. Unmeasurable when there are fewer than 64.
    """
    if not isinstance(counter, LocalCounter):
        return _find(counter, candidates())
    identity = hashlib.sha256(f"{counter.digest} {candidates()}".encode()).hexdigest()
    kept = load_words(identity)
    if kept is not None:
        return kept
    start = monotonic()
    try:
        table = _find(counter, candidates())
    except Unmeasurable:
        table = _find(counter, vocabulary_words(counter.vocabulary()))
    if monotonic() - start > _SLOW_S:
        save_words(identity, table)
    return table


def verify_words(counter: TextCounter, table: WordTable) -> None:
    """Count up to 1,500 words of the table at once; Unmeasurable with both numbers when the count is another."""
    with _refusals_said(counter):
        _prove(TextSums(counter), table, "the tokenizer given is not the server's: use --tokenizer server or usage")


def _find(counter: TextCounter, groups: Iterable[Sequence[str]]) -> WordTable:
    best: list[str] = []
    with _refusals_said(counter):
        texts = TextSums(counter)
        for words in groups:
            best = max(best, single_tokens(texts, words), key=len)
            if len(best) >= MINIMUM_WORDS:
                table = _table(best)
                _prove(texts, table, "it joins words, or does not count tokens: try --tokenizer DIR")
                return table
    raise Unmeasurable(
        f"only {len(best)} words are one token by {counter.name}, {MINIMUM_WORDS} are needed",
        remedy="is this the tokenizer of a text model? try --tokenizer DIR",
    )


@contextmanager
def _refusals_said(counter: TextCounter) -> Iterator[None]:
    try:
        yield
    except Refused as error:
        raise Unmeasurable(
            f"tokens can't be counted by {counter.name}: {error}",
            remedy="look at the server's log",
            exit_code=EXIT_ENDPOINT,
        ) from error


def _table(words: Sequence[str]) -> WordTable:
    return WordTable(tuple(f" {word}" for word in words[:WANTED_WORDS]))


def _prove(texts: TextSums, table: WordTable, remedy: str) -> None:
    """Count texts of growing size drawn from the table; a size that the server does not take ends it."""
    for size in _PROOF_WORDS:
        chosen = random.Random(size).choices(table.words, k=size)
        try:
            counted = texts.count("".join(chosen))
        except Refused:
            if size == _PROOF_WORDS[0]:
                raise
            return
        if counted != size:
            raise Unmeasurable(f"{size} one-token words are {counted} tokens by {texts.name}", remedy=remedy)
