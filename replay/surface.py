"""The API routes over which the same plan can be replayed: what a request is made of, and who reads the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from replay.messages import AnthropicFrames, Frames, NoFrames
from replay.spoken import KeptAnthropic, KeptChat, KeptGenerate
from replay.stream import AnswerStream, ChatStream
from replay.stream_anthropic import AnthropicStream
from replay.stream_generate import GenerateStream


@dataclass(frozen=True, slots=True)
class Surface:
    """One route."""

    route: str
    opening: bytes
    """What stands between the body's leading fields and the conversation."""
    frames: Frames
    stream: Callable[[int | None], AnswerStream]
    """Makes the parser of an answer; takes the number of tokens that the request forces."""
    kept: Callable[[int | None], AnswerStream]
    """The same, where the answer is kept for later prompts."""
    token_ids: bool = False
    """The prompt is a list of token ids: no template, every prompt exactly as long as planned."""


CHAT = "chat"
SURFACES: dict[str, Surface] = {
    CHAT: Surface("/v1/chat/completions", b',"messages":[', Frames(), ChatStream, KeptChat),
    "completions": Surface("/v1/completions", b',"prompt":[', NoFrames(), ChatStream, KeptChat, token_ids=True),
    "messages": Surface("/v1/messages", b",", AnthropicFrames(), AnthropicStream, KeptAnthropic),
    "generate": Surface("/generate", b',"input_ids":[', NoFrames(), GenerateStream, KeptGenerate, token_ids=True),
}
"""OpenAI's chat completions and completions, Anthropic's Messages, SGLang's native route."""
