"""Several endpoints of one run: each is probed, and all must serve the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.probe import Probed, probe
from replay.endpoint import Endpoint, parse_endpoint
from results.errors import EXIT_ENDPOINT, UserError


def parse_endpoints(urls: Sequence[str], **options: Any) -> tuple[Endpoint, ...]:
    """The endpoints by their URLs; `options` as of `parse_endpoint`. UserError for none, a wrong one or one twice."""
    endpoints = tuple(parse_endpoint(url, **options) for url in urls)
    if not endpoints:
        raise UserError("no endpoint", remedy="give --endpoint URL, or --mock for the simulated one")
    seen: set[tuple[str, str | None]] = set()
    for endpoint in endpoints:
        if (endpoint.base, endpoint.uds) in seen:
            raise UserError(f"--endpoint {endpoint.base} is given twice", remedy="name each endpoint once")
        seen.add((endpoint.base, endpoint.uds))
    return endpoints


def probe_all(endpoints: Sequence[Endpoint], **options: Any) -> tuple[Probed, ...]:
    """Probe each endpoint; `options` as of `probe`. UserError (exit code 3) where two do not serve the same."""
    found = tuple(probe(endpoint, **options) for endpoint in endpoints)
    for endpoint, other in zip(endpoints[1:], found[1:], strict=True):
        for fact, mine, theirs in _facts(found[0], other):
            if mine != theirs:
                raise UserError(
                    f"--endpoint {endpoint.base} has another {fact} than {endpoints[0].base}: {theirs}, not {mine}",
                    remedy="endpoints of one run must serve the same model in the same way",
                    exit_code=EXIT_ENDPOINT,
                )
    return found


def _facts(a: Probed, b: Probed) -> list[tuple[str, Any, Any]]:
    """What plan and prompts depend on, as short texts or numbers."""
    return [
        ("model", a.model, b.model),
        ("context length", a.max_model_len, b.max_model_len),
        ("vocabulary", a.words.digest, b.words.digest),
        ("chat template", a.shape, b.shape),
        ("cache block", a.server_block, b.server_block),
        ("set of accepted fields", a.body, b.body),
    ]
