"""Headers by which a router recognises a conversation: one value per lane of a tree, for all its turns."""

from __future__ import annotations

_HEADERS = {
    "correlation": "x-correlation-id",
    "session": "x-session-id",
    "affinity": "x-session-affinity",
    "smg": "x-smg-routing-key",
    "dynamo": "x-dynamo-session-id",
}
_PARENT = "x-dynamo-parent-session-id"


def affinity_lines(kind: str, tree_id: str, lane: int, root_lane: int) -> bytes:
    """Header lines, each ended, for a request of `lane`.

    A sub-agent has an id of its own; Dynamo is also told whose it is.
    """
    lines = f"{_HEADERS[kind]}: {tree_id}-{lane}\r\n"
    if kind == "dynamo" and lane != root_lane:
        lines += f"{_PARENT}: {tree_id}-{root_lane}\r\n"
    return lines.encode()
