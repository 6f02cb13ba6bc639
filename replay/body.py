"""The request body around the messages: encoded once per run, so that a turn only joins bytes."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """Which fields the server takes (found out by a probe) for chat completions."""

    model: str
    length_field: str = "max_tokens"
    ignore_eos: bool = True
    min_tokens: bool = True
    usage: bool = True

    @property
    def forces_length(self) -> bool:
        """Whether the server was told to generate exactly the planned number of tokens."""
        return self.ignore_eos or self.min_tokens

    def head(self) -> bytes:
        """Everything up to and with the messages' opening bracket."""
        fields: dict[str, object] = {"model": self.model, "stream": True}
        if self.usage:
            fields["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            fields["ignore_eos"] = True
        return msgspec.json.encode(fields)[:-1] + b',"messages":['

    def tail(self, output_tokens: int) -> bytes:
        """The messages' closing bracket and the length of the answer."""
        if self.min_tokens:
            return b'],"%b":%d,"min_tokens":%d}' % (self.length_field.encode(), output_tokens, output_tokens)
        return b'],"%b":%d}' % (self.length_field.encode(), output_tokens)
