"""/generate of the simulated endpoint: SGLang's native dialect.

Every event of a stream repeats the text and the ids so far, as SGLang does unless it is started with
`--incremental-streaming-output`, and says running counts. A streamed request that can't be served is answered 200
with the error as an event, as there.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from hardware.engine.model import Request
from harness.mock_api import LAST_CHUNK, Api, ApiError, Job, chunk, decode, encode, prompt_of_ids
from harness.mock_text import WORD_IDS, WORDS, Answer, Prompt

_DONE = b"data: [DONE]\n\n"
_END_OF_TEXT = 0
"""The id of the token that ends an answer by itself."""


class _Sampling(msgspec.Struct):
    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    ignore_eos: bool = False
    sampling_seed: int | None = None
    n: int = 1


class _Generate(msgspec.Struct):
    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: _Sampling | None = None
    stream: bool = False
    return_logprob: bool | None = False


class GenerateRoute:
    """Bodies of /generate."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._decoder = msgspec.json.Decoder(_Generate)

    def read(self, body: bytes) -> Job:
        """Check a body. Raises ApiError."""
        stream = False
        try:
            fields = decode(self._decoder, body)
            stream = fields.stream
            return self._job(fields, fields.sampling_params or _Sampling())
        except ApiError as error:
            error.body = encode({"error": {"message": str(error)}})
            if stream:
                error.status, error.content_type = 200, b"text/event-stream; charset=utf-8"
                error.body = b"data: %b\n\n" % error.body + _DONE
            raise

    def _job(self, fields: _Generate, sampling: _Sampling) -> Job:
        if (fields.text is None) == (fields.input_ids is None):
            raise ApiError(400, "Either text or input_ids should be provided, and not both.")
        if fields.input_ids is not None:
            prompt = prompt_of_ids(fields.input_ids, param="input_ids")
        else:
            prompt = Prompt.of_text((fields.text or "").encode())
        if not len(prompt):
            raise ApiError(400, "The prompt is empty.")
        if sampling.n != 1 or fields.return_logprob:
            raise ApiError(400, "n other than 1 and return_logprob are not supported here.")
        answer = self._api.answer(
            prompt,
            longest=sampling.max_new_tokens,
            shortest=sampling.min_new_tokens,
            forced=sampling.ignore_eos,
            seed=sampling.sampling_seed,
        )
        return Job(prompt, answer, fields.stream, partial(GenerateReply, answer))


class GenerateReply:
    """Keeps what has been said, since every event says it again."""

    __slots__ = ("_answer", "_id", "_ids", "_text")

    def __init__(self, answer: Answer, request_id: str) -> None:
        self._answer = answer
        self._id = request_id
        self._text = b""
        self._ids = b""

    def opening(self) -> bytes:
        """Nothing comes before the first token."""
        return b""

    def token(self, request: Request) -> bytes:
        """Everything up to and with the latest token."""
        return self._event(request, None)

    def last(self, request: Request) -> bytes:
        """All of the answer, and the end of the stream."""
        return self._event(request, self._finish()) + chunk(_DONE) + LAST_CHUNK

    def whole(self, request: Request) -> bytes:
        """The body of an answer that was not streamed."""
        text, ids = self._answer.text().decode(), self._answer.ids()
        return encode({"text": text, "output_ids": ids, "meta_info": self._meta(request, self._finish())})

    def _event(self, request: Request, finish: dict[str, Any] | None) -> bytes:
        pick = self._answer.picks[request.generated - 1]
        self._text += WORDS[pick]
        self._ids += b"%b%d" % (b"," if self._ids else b"", WORD_IDS[pick])
        meta = encode(self._meta(request, finish))
        return chunk(b'data: {"text":"%b","output_ids":[%b],"meta_info":%b}\n\n' % (self._text, self._ids, meta))

    def _meta(self, request: Request, finish: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "id": self._id,
            "finish_reason": finish,
            "prompt_tokens": request.prompt_tokens,
            "completion_tokens": request.generated,
            "cached_tokens": request.cached_tokens,
        }

    def _finish(self) -> dict[str, Any]:
        if self._answer.finish_reason == "length":
            return {"type": "length", "length": len(self._answer.picks)}
        return {"type": "stop", "matched": _END_OF_TEXT}
