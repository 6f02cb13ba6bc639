"""Before the clock: is the server there, what does it serve, which fields does it take, how does it count tokens."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass
from time import monotonic, sleep
from typing import Any

import httpx

from harness.worker_config import CounterSource
from replay.body import BodyFormat
from replay.chat_shape import ChatShape, measure_reasoning, measure_shape
from replay.endpoint import Endpoint
from replay.messages import message
from replay.surface import CHAT, SURFACES
from replay.tokens import (
    LocalCounter,
    ServerCounter,
    TextCounter,
    TokenCounter,
    common_words,
    find_words,
    verify_words,
    word_ids,
)
from replay.usage import COUNTERS, Refused, Unmeasurable, UsageCounter
from replay.words import WordTable
from results.errors import EXIT_ENDPOINT, UserError

_RETRY_S = 0.5
_NO_TEMPLATE = ChatShape(0, 0, 0, 0, tool=0, assistant_call=0, source="token ids: no chat template")
_LENGTH_FIELDS = {CHAT: ("max_tokens", "max_completion_tokens")}
_FORCING = ((True, True), (True, False), (False, True), (False, False))
"""(ignore_eos, min_tokens). The Messages route knows neither: there the model may stop early."""
_BLOCK_SIZE = re.compile(
    r'^vllm:cache_config_info\{[^}]*\bblock_size="(\d+)"'
    r"|^dynamo_frontend_model_kv_cache_block_size(?:\{[^}]*\})? (\d+)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Probed:
    """What the probe found out; the basis of every prompt."""

    model: str
    max_model_len: int | None
    server_version: str | None
    server_block: int | None
    counter: str
    words: WordTable
    shape: ChatShape
    doubt: str | None
    """Why prompt sizes can't be promised; None when they were measured."""
    body: BodyFormat
    counter_source: CounterSource | None
    cost: UsageCounter
    """Counts what the probe itself sent: not part of the run, but part of the server's counters."""

    def fingerprint(self) -> dict[str, Any]:
        """What run.json says of the server."""
        return {
            "model": self.model,
            "max_model_len": self.max_model_len,
            "server_version": self.server_version,
            "block_size": self.server_block,
            "token_counts_from": self.counter,
            "words": {"count": len(self.words.words), "digest": self.words.digest},
            "chat_template_tokens": asdict(self.shape),
            "prompt_sizes_doubt": self.doubt,
            "request_fields": asdict(self.body),
            "probe": {
                "requests": self.cost.requests,
                "prompt_tokens": self.cost.prompt_tokens,
                "output_tokens": self.cost.output_tokens,
                "cached_tokens": self.cost.cached_tokens,
            },
        }


def probe(
    endpoint: Endpoint,
    *,
    model: str | None,
    tokenizer: str | None,
    ready_timeout_s: float,
    tool_messages: bool,
    quiet: bool,
    surface: str = CHAT,
    keeps_answers: bool = False,
    keeps_reasoning: bool = False,
) -> Probed:
    """Find out everything a run needs; UserError (exit code 3) when the endpoint can't be used."""
    with control_client(endpoint) as http:
        models = _wait_ready(http, endpoint, ready_timeout_s, quiet=quiet)
        name, max_len = _choose_model(models, model, endpoint)
        usage = COUNTERS[surface](http, name)
        counter, server = _counters(http, name, tokenizer, usage)
        if SURFACES[surface].token_ids:
            words, shape, doubt = _ids(counter, surface), _NO_TEMPLATE, None
        else:
            words, shape, doubt = _measure(counter, server, tool_messages, chosen=tokenizer is not None)
            if keeps_reasoning and doubt is None:
                shape = measure_reasoning(server, words, shape)
        if doubt and not quiet:
            print(f"agentx: {doubt}", file=sys.stderr, flush=True)
        source = _source(counter)
        if keeps_answers and source is None:
            raise UserError(
                "--assistant live counts every answer, and the endpoint has no tokenize route",
                remedy="give --tokenizer DIR with the model's tokenizer.json",
            )
        return Probed(
            model=name,
            max_model_len=max_len,
            server_version=_version(http),
            server_block=_server_block(http),
            counter=counter.name,
            words=words,
            shape=shape,
            doubt=doubt,
            body=_negotiate(usage, name, words, surface, ids=keeps_answers),
            counter_source=source,
            cost=usage,
        )


def control_client(endpoint: Endpoint) -> httpx.Client:
    """An httpx client for everything that is not measured, with the load's own headers, certificates and proxy."""
    verify = endpoint.ssl_context() if endpoint.tls else True
    transport = httpx.HTTPTransport(uds=endpoint.uds) if endpoint.uds else None
    base = "http://localhost" if endpoint.uds else endpoint.base
    return httpx.Client(
        base_url=base,
        headers=dict(endpoint.headers),
        verify=verify,
        transport=transport,
        proxy=endpoint.proxy,
        trust_env=False,  # the environment's proxies have been read once, by one rule: `parse_endpoint`
        timeout=httpx.Timeout(60.0, connect=5.0),
    )


def _wait_ready(http: httpx.Client, endpoint: Endpoint, timeout_s: float, *, quiet: bool) -> list[dict[str, Any]]:
    deadline = monotonic() + timeout_s
    said = quiet
    while True:
        try:
            response = http.get("/v1/models")
            if response.status_code < 500:
                return _models(response, endpoint)
            last = f"HTTP {response.status_code}"
        except httpx.HTTPError as error:
            last = str(error) or type(error).__name__
            if "CERTIFICATE" in last.upper():
                raise UserError(
                    f"--endpoint {endpoint.base}: certificate not accepted: {last}",
                    remedy="give --ca-file FILE, or --insecure",
                    exit_code=EXIT_ENDPOINT,
                ) from error
        if monotonic() > deadline:
            raise UserError(
                f"--endpoint {endpoint.way} is not ready after {timeout_s:g} s: {last}",
                remedy=endpoint.remedy if endpoint.proxy else "start the server, or give --ready-timeout more",
                exit_code=EXIT_ENDPOINT,
            )
        if not said:
            print(f"agentx: waiting for {endpoint.way} ({last})", file=sys.stderr, flush=True)
            said = True
        sleep(_RETRY_S)


def _models(response: httpx.Response, endpoint: Endpoint) -> list[dict[str, Any]]:
    if response.status_code in (401, 403):
        raise UserError(
            f"--endpoint {endpoint.base}: GET /v1/models says {response.status_code}",
            remedy="put the key into AGENTX_API_KEY",
            exit_code=EXIT_ENDPOINT,
        )
    try:
        data = response.json()["data"]
        return [dict(entry) for entry in data]
    except (ValueError, KeyError, TypeError):
        return []


def _choose_model(models: list[dict[str, Any]], wanted: str | None, endpoint: Endpoint) -> tuple[str, int | None]:
    if wanted is None:
        if len(models) != 1:
            names = ", ".join(str(m.get("id")) for m in models) or "none"
            raise UserError(
                f"--endpoint {endpoint.base} lists {len(models)} models ({names})",
                remedy="give --model",
                exit_code=EXIT_ENDPOINT,
            )
        wanted = str(models[0].get("id"))
    entry = next((m for m in models if m.get("id") == wanted), None)
    if entry is None and models:
        names = ", ".join(str(m.get("id")) for m in models)
        raise UserError(f"--model {wanted} is not served", remedy=f"choose one of: {names}", exit_code=EXIT_ENDPOINT)
    length = (entry or {}).get("max_model_len")
    return wanted, int(length) if isinstance(length, int) and length > 0 else None


def _counters(
    http: httpx.Client, model: str, choice: str | None, usage: UsageCounter
) -> tuple[TextCounter, TokenCounter]:
    """Who says which words are one token, and who counts as the server does."""
    route = ServerCounter.detect(http, model, usage) if choice != "usage" else None
    if choice == "server" and route is None:
        raise UserError("--tokenizer server: the endpoint has no tokenize route", remedy="use --tokenizer usage or DIR")
    server: TokenCounter = route or usage
    if choice in (None, "server", "usage"):
        return server, server
    return LocalCounter.load(choice), server


def _measure(
    counter: TextCounter, server: TokenCounter, tool_messages: bool, *, chosen: bool
) -> tuple[WordTable, ChatShape, str | None]:
    """Words and template; where the server's counts are no token counts, a guess that is said to be one.

    A tokenizer the user chose is not replaced by a guess: then the error stands.
    """
    try:
        words = find_words(counter)
        if counter is not server:
            verify_words(server, words)
        return words, measure_shape(server, words, tools=tool_messages), None
    except Unmeasurable as error:
        if chosen:
            raise
        note = f"prompt sizes are a guess, one token a word: {error.message}"
        return common_words(), ChatShape(0, 0, 0, 0, source="assumed", note=note), note


def _version(http: httpx.Client) -> str | None:
    try:
        response = http.get("/version")
        return str(response.json()["version"]) if response.status_code == 200 else None
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return None


def _server_block(http: httpx.Client) -> int | None:
    """Tokens per block of the server's prefix cache, from its metrics page."""
    try:
        response = http.get("/metrics")
    except httpx.HTTPError:
        return None
    found = _BLOCK_SIZE.search(response.text) if response.status_code == 200 else None
    return int(found[1] or found[2]) if found else None


def _source(counter: TextCounter) -> CounterSource | None:
    if isinstance(counter, LocalCounter):
        return CounterSource(str(counter.path.parent))
    return CounterSource(None, counter.route) if isinstance(counter, ServerCounter) else None


def _ids(counter: TextCounter, surface: str) -> WordTable:
    if not isinstance(counter, ServerCounter | LocalCounter):
        raise UserError(
            f"--surface {surface} sends token ids, and the endpoint has no tokenize route to ask for them",
            remedy="give --tokenizer DIR with the model's tokenizer.json",
        )
    return word_ids(counter, find_words(counter))


def _negotiate(usage: UsageCounter, model: str, words: WordTable, surface: str, *, ids: bool) -> BodyFormat:
    """The fullest set of fields that the server takes: a forced length first, then without what it refuses."""
    last: Refused | None = None
    prompt = _tiny_prompt(usage, words, surface)
    returns_ids = ids and surface == "completions"
    prompt |= {"return_token_ids": True} if returns_ids else {}
    for length_field in _LENGTH_FIELDS.get(surface, ("max_tokens",)):
        for ignore_eos, min_tokens in _FORCING if surface != "messages" else _FORCING[-1:]:
            try:
                usage.ask(prompt | usage.length(length_field, 2, ignore_eos=ignore_eos, min_tokens=min_tokens))
            except Refused as error:
                last = error
                if error.status not in (400, 422):
                    break
            else:
                return BodyFormat(model, length_field, ignore_eos, min_tokens, surface=surface, returns_ids=returns_ids)
    route = SURFACES[surface].route
    raise UserError(f"the endpoint refuses {route}: {last}", remedy="check --model", exit_code=EXIT_ENDPOINT)


def _tiny_prompt(usage: UsageCounter, words: WordTable, surface: str) -> dict[str, Any]:
    text = "".join(words.words[:4])
    if not SURFACES[surface].token_ids:
        return usage.fields([message("user", text)])
    return {"input_ids" if surface == "generate" else "prompt": [int(number) for number in text[1:].split(",")]}
