"""The request body around the conversation: encoded once per run, so that a turn only joins bytes."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from replay.surface import CHAT, SURFACES, Surface


@dataclass(frozen=True, slots=True)
class BodyFormat:
    """Which fields the server takes (found out by a probe)."""

    model: str
    length_field: str = "max_tokens"
    ignore_eos: bool = True
    min_tokens: bool = True
    usage: bool = True
    surface: str = CHAT
    returns_ids: bool = False
    """Completions: the answer holds the ids of its tokens."""

    @property
    def forces_length(self) -> bool:
        """Whether the server was told to generate exactly the planned number of tokens."""
        return self.ignore_eos or self.min_tokens

    @property
    def route(self) -> Surface:
        """The route it is for."""
        return SURFACES[self.surface]

    def head(self) -> bytes:
        """Everything before the conversation."""
        fields: dict[str, object] = {"stream": True}
        if self.surface != "generate":
            fields = {"model": self.model, **fields}
            if self.usage and self.surface != "messages":  # there every answer carries its usage
                fields["stream_options"] = {"include_usage": True}
            if self.returns_ids:
                fields["return_token_ids"] = True
            if self.ignore_eos:
                fields["ignore_eos"] = True
        return msgspec.json.encode(fields)[:-1] + self.route.opening

    def tail(self, output_tokens: int) -> bytes:
        """The conversation's closing bracket and the length of the answer."""
        if self.surface == "generate":
            forced = b',"ignore_eos":true' if self.ignore_eos else b""
            forced += b',"min_new_tokens":%d' % output_tokens if self.min_tokens else b""
            return b'],"sampling_params":{"max_new_tokens":%d%b}}' % (output_tokens, forced)
        if self.min_tokens:
            return b'],"%b":%d,"min_tokens":%d}' % (self.length_field.encode(), output_tokens, output_tokens)
        return b'],"%b":%d}' % (self.length_field.encode(), output_tokens)
