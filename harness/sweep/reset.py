"""The cache of a server that is not ours, emptied between points and shown to be empty."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import httpx

from harness.credentials import control_headers
from results.errors import UserError

_ROUTES = {"reset_prefix_cache": "/reset_prefix_cache", "flush_cache": "/flush_cache"}
"""vLLM (with VLLM_SERVER_DEV_MODE=1) and SGLang."""
_PROBE_WORDS = 1_500
"""Longer than any engine's cache block."""


@dataclass(frozen=True, slots=True)
class Reset:
    """What was done about the cache before a point."""

    how: str
    """`reset_prefix_cache`, `flush_cache` or `salt`."""
    verified: bool | None
    """A prompt that was cached is not any more; None: the server does not say cached tokens."""
    note: str


def reset_cache(endpoint: str, how: str, model: str | None) -> Reset:
    """Empty the cache in the way `how` says (`auto`: the first that the server has).

    UserError when the way asked for is not there or leaves the cache as it was.
    """
    base = endpoint.rstrip("/").removesuffix("/v1")
    if how == "salt":
        return Reset("salt", None, "not emptied; the run's words are new, so nothing of an earlier run can be hit")
    try:
        with httpx.Client(base_url=base, timeout=120, headers=control_headers(), trust_env=False) as client:
            prompt = " ".join([secrets.token_hex(8), *["word"] * _PROBE_WORDS])
            model = model or str(client.get("/v1/models").raise_for_status().json()["data"][0]["id"])
            _cached(client, model, prompt)
            before = _cached(client, model, prompt)
            done = _reset(client, how)
            if done is None:
                if how != "auto":
                    raise UserError(f"the endpoint has no {_ROUTES[how]}", remedy="use `reset: auto` or `reset: salt`")
                return Reset("salt", None, "the server has no route that empties its cache; the run's words are new")
            after = _cached(client, model, prompt)
    except httpx.HTTPError as error:
        raise UserError(f"the cache could not be emptied: {type(error).__name__}") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"the cache could not be emptied: the answer is not what was expected ({error})") from error
    if not before:
        return Reset(done, None, "emptied; not verified: the server does not report cached tokens")
    if after:
        raise UserError(
            f"{_ROUTES[done]} left {after} of {before} tokens of a probe in the cache",
            remedy="stop other traffic to the endpoint, or use `reset: salt`",
        )
    return Reset(done, True, f"emptied; a probe had {before} cached tokens before and none after")


def _reset(client: httpx.Client, how: str) -> str | None:
    """The way that worked, None where the server has none of them."""
    for name in _ROUTES if how == "auto" else (how,):
        answer = client.post(_ROUTES[name])
        if answer.status_code in (404, 405):
            continue
        said = answer.text[:200]
        if answer.status_code != 200 or '"success":false' in said.replace(" ", ""):
            raise UserError(f"{_ROUTES[name]} answered HTTP {answer.status_code}: requests still running?")
        return name
    return None


def _cached(client: httpx.Client, model: str, prompt: str) -> int:
    """Cached tokens of one small request, 0 where the server does not say."""
    body = {"model": model, "messages": [{"role": "user", "content": prompt}], "max_tokens": 1}
    usage = client.post("/v1/chat/completions", json=body).raise_for_status().json().get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)
