"""Words found earlier, by tokenizer file: a large vocabulary takes longer to read than a start-up should.

A cache may be missing, unreadable or broken: then the words are found again.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from replay.words import WordTable


def _path(identity: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    folder = Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))
    return folder / "agentx" / f"words-{identity[:32]}.json"


def load_words(identity: str) -> WordTable | None:
    """The words kept under `identity` (hex digits), None when there are none or they can't be read."""
    try:
        data = json.loads(_path(identity).read_bytes())
        return WordTable(tuple(data["words"])) if data["identity"] == identity else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save_words(identity: str, table: WordTable) -> None:
    """Keep `table` under `identity`, whole or not at all; a folder that can't be written is no error."""
    path = _path(identity)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            json.dump({"identity": identity, "words": table.words}, file)
        os.replace(file.name, path)
    except OSError:
        return
