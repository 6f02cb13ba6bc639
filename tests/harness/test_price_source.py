"""`--prices` from OpenRouter's models route, spoken by a local server, and where it can't be had."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from harness.price_source import find_prices, from_openrouter
from results.errors import EXIT_ENDPOINT, UserError

MODELS = {
    "data": [
        {
            "id": "z-ai/glm-5.1",
            "name": "Z.AI: GLM 5.1",
            "context_length": 202752,
            "pricing": {"prompt": "0.0000014", "completion": "0.0000044", "input_cache_read": "0.00000026"},
        }
    ]
}


@contextmanager
def route(body: bytes, status: int = 200) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/api/v1/models"
        finally:
            server.shutdown()
            thread.join()


def test_the_route_is_read_and_dated_today() -> None:
    with route(json.dumps(MODELS).encode()) as url:
        listed = from_openrouter("z-ai/glm-5.1", url=url)
    assert (listed.price.input, listed.price.cached_input, listed.price.output) == (1.4, 0.26, 4.4)
    assert listed.name == "openrouter:z-ai/glm-5.1"
    assert listed.price.source == url
    assert listed.price.date == datetime.now(UTC).date().isoformat()


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{}", 503, "status 503"),
        (b"<html>", 200, "JSONDecodeError"),
        (b"\xff", 200, "UnicodeDecodeError"),
    ],
)
def test_an_answer_that_is_none_is_one_line(body: bytes, status: int, said: str) -> None:
    with route(body, status) as url, pytest.raises(UserError) as caught:
        from_openrouter("a/m", url=url)
    text = str(caught.value)
    assert text.startswith(f"{url}: {said}")
    assert "--prices FILE" in text
    assert "\n" not in text
    assert caught.value.exit_code == EXIT_ENDPOINT


def test_nobody_there_is_one_line_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with route(b"{}") as url:
        pass  # closed again
    with pytest.raises(UserError, match=r"ConnectError.*--prices FILE") as caught:
        from_openrouter("a/m", url=url)
    assert caught.value.exit_code == EXIT_ENDPOINT


def test_openrouter_has_no_past() -> None:
    with pytest.raises(UserError, match="today's price only"):
        find_prices("openrouter:a/m", as_of=date(2026, 1, 1))


def test_names_files_and_lists_in_files(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    table = 'prices = [{ input = 1, output = 2, source = "us", date = "2026" }]'
    file.write_text(f"[zai]\n{table}\n")
    assert find_prices(str(file)).price.source == "us"
    file.write_text(f"[a]\n{table}\n[b]\n{table.replace('1', '3')}\n")
    assert find_prices(f"{file}:b").price.input == 3
    with pytest.raises(UserError, match="several lists; choose one of: a, b"):
        find_prices(str(file))
    with pytest.raises(UserError, match="no such list; choose one of: a, b"):
        find_prices(f"{file}:c")
    assert find_prices("zai", source="openclaw").price.input == 1.2
    with pytest.raises(UserError, match=r"--prices nope; choose one of: zai, .*openrouter"):
        find_prices("nope")
    with pytest.raises(UserError, match=r"price file .*gone.toml: No such file"):
        find_prices("gone.toml")
