"""One request and what came of it: the state between the scheduler's `Send` and the journal's row."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from replay.stream import AnswerStream, parse_error_body, parse_json_answer
from results.records import Flag, Status

Buffer = bytes | bytearray | memoryview

_MAX_ERROR_BODY = 65_536


class Exchange:
    """A request in flight. All times are CLOCK_MONOTONIC nanoseconds, -1 until known."""

    __slots__ = (
        "_body",
        "_decoder",
        "_kind",
        "connect_ns",
        "context",
        "done_ns",
        "error",
        "first_byte_ns",
        "flags",
        "head",
        "headers_ns",
        "http_status",
        "kernel_stamps",
        "on_done",
        "parts",
        "reused",
        "sent_ns",
        "status",
        "stream",
    )

    def __init__(
        self,
        stream: AnswerStream,
        on_done: Callable[[Exchange], None],
        context: object = None,
    ) -> None:
        self.head = b""
        self.parts: Sequence[Buffer] = ()
        self.stream = stream
        self.on_done = on_done
        self.context = context
        self.sent_ns = self.headers_ns = self.first_byte_ns = self.done_ns = -1
        self.connect_ns = -1
        self.http_status = -1
        self.status: Status | None = None
        self.error: str | None = None
        self.flags = 0
        self.kernel_stamps = True
        self.reused = False
        self._kind = ""
        self._body = bytearray()
        self._decoder: zlib._Decompress | None = None

    def start_answer(self, http_status: int, content_type: bytes, encoding: bytes, t_ns: int) -> None:
        """The response head is complete."""
        self.http_status = http_status
        self.headers_ns = t_ns
        if 200 <= http_status < 300 and b"json" not in content_type.lower():
            self._kind = "stream"
        else:
            self._kind = "json" if 200 <= http_status < 300 else "error"
        if encoding and encoding.lower() != b"identity":
            self.flags |= Flag.COMPRESSED
            if self._kind == "stream" and encoding.lower() in (b"gzip", b"deflate"):
                self._decoder = zlib.decompressobj(wbits=47)  # 47: gzip or zlib, told apart by the header

    @property
    def feed(self) -> Callable[[bytes, int], None]:
        """Where body bytes go; asked once per answer so that the usual case is the parser itself."""
        if self._kind != "stream":
            return self._collect
        return self._inflate if self._decoder is not None else self.stream.feed

    def _inflate(self, body: bytes, t_ns: int) -> None:
        assert self._decoder is not None
        try:
            text = self._decoder.decompress(body)
        except zlib.error as error:
            self.fail(Status.STREAM_ERROR, f"compressed answer cannot be read: {error}", t_ns)
            return
        if text:
            self.stream.feed(text, t_ns)

    def _collect(self, body: bytes, t_ns: int) -> None:
        room = _MAX_ERROR_BODY if self._kind == "error" else 64 * _MAX_ERROR_BODY
        self._body += body[: room - len(self._body)]

    def finish(self, t_ns: int, *, clean: bool) -> None:
        """The answer is over; decide its status and hand it back."""
        if self.done_ns >= 0:
            return
        self.done_ns = t_ns
        if self._kind == "stream":
            self.stream.end(t_ns, clean)
            if self.status is None:
                self.status, self.error = self.stream.status, self.stream.error
        elif self._kind == "error":
            self.status, self.error = parse_error_body(self.http_status, bytes(self._body))
        elif not clean:
            self.status, self.error = Status.TRUNCATED, "connection closed inside a JSON answer"
        else:
            self.status, self.error = parse_json_answer(bytes(self._body))
        self._close()

    def fail(self, status: Status, error: str, t_ns: int) -> None:
        """End without a complete answer; what had arrived stays visible."""
        if self.done_ns >= 0:
            return
        self.done_ns = t_ns
        self.status, self.error = status, error
        if self._kind == "stream":
            self.stream.end(t_ns, False)
        self._close()

    def _close(self) -> None:
        # The parts are views of the lane's conversation, which can't grow while they exist.
        for part in self.parts:
            if isinstance(part, memoryview):
                part.release()
        self.parts = ()
        self.on_done(self)
