"""The answer of OpenRouter's models route, read as a list price. Pure.

The route gives `data[]` with `id` and `pricing`, whose values are strings of dollars per token: `prompt`, `completion`,
`input_cache_read` (absent where the provider has no such price), and `request`, a fee for each request.
"""

from __future__ import annotations

import difflib
import math
from typing import Any

from results.errors import UserError
from results.price_list import ListPrice


def list_price(document: Any, model: str, *, source: str, date: str) -> ListPrice:
    """The price of `model` per million tokens; UserError naming the source when it can't be read from the answer."""
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise UserError(f"{source}: not a list of models", remedy="is that OpenRouter's models route?")
    by_id = {entry["id"]: entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)}
    if model not in by_id:
        close = difflib.get_close_matches(model, list(by_id), n=3, cutoff=0.5)
        raise UserError(
            f"{source}: no model {model!r}", remedy=f"closest: {', '.join(close)}" if close else "write author/model"
        )
    pricing = by_id[model].get("pricing")
    given = pricing if isinstance(pricing, dict) else {}
    dollars = {key: _per_million(given, key, f"{source}: {model}") for key in ("prompt", "completion")}
    missing = [key for key, value in dollars.items() if value is None]
    if missing:
        raise UserError(f"{source}: {model}: no price of {' and '.join(missing)}")
    fee = _per_million(given, "request", f"{source}: {model}")
    return ListPrice(
        input=dollars["prompt"] or 0.0,
        output=dollars["completion"] or 0.0,
        cached_input=_per_million(given, "input_cache_read", f"{source}: {model}"),
        source=source,
        date=date,
        note=f"${fee / 1e6:g} for each request is left out" if fee else None,
    )


def _per_million(pricing: dict[str, Any], key: str, what: str) -> float | None:
    value = pricing.get(key)
    if value is None:
        return None
    try:
        dollars = float(value)
    except (TypeError, ValueError):
        raise UserError(f"{what}: {key} {value!r} is not a number") from None
    if not math.isfinite(dollars) or dollars < 0:  # -1 stands for a price that depends on where the request goes
        raise UserError(f"{what}: {key} {value!r} is no fixed price", remedy="choose a model with one")
    return round(dollars * 1e6, 9)
