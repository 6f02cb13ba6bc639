from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from harness.mock_server import MockConfig
from harness.sweep.reset import reset_cache
from results.errors import UserError
from tests.harness.mock_thread import FAST, serving
from tests.harness.sweep.fast_server import QUICK
from tests.harness.sweep.sweeps import HEAD, sweep, write


@contextmanager
def answering(reset_status: int, cached: tuple[int | None, ...], path: str = "/flush_cache") -> Iterator[str]:
    """A server that has one reset route and says these cached tokens, request after request."""
    left = list(cached)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, {"data": [{"id": "m"}]})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"] or 0))
            if "chat" in self.path:
                self._answer(200, {"usage": {"prompt_tokens_details": {"cached_tokens": left.pop(0)}}})
            elif self.path == path:
                self._answer(reset_status, {"success": reset_status == 200})
            else:
                self._answer(404, {})

        def _answer(self, status: int, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_reset_is_verified_on_a_server_that_caches() -> None:
    profile = dataclasses.replace(FAST, block_size=64, cache_blocks=4_096)
    with serving(MockConfig(profile, "quick")) as port:
        for url in (f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}/v1/"):
            done = reset_cache(url, "auto", None)
            assert (done.how, done.verified) == ("reset_prefix_cache", True)
            assert "cached tokens before and none after" in done.note


def test_sglang_s_route_is_found_too() -> None:
    with answering(200, (0, 1024, 0)) as url:
        assert reset_cache(url, "auto", None).how == "flush_cache"


def test_a_reset_that_left_the_cache_full_fails_the_point() -> None:
    with answering(200, (0, 1024, 1024)) as url, pytest.raises(UserError, match="left 1024 of 1024 tokens"):
        reset_cache(url, "flush_cache", "m")


def test_a_refused_reset_fails_the_point() -> None:
    with answering(400, (0, 1024, 0)) as url, pytest.raises(UserError, match="HTTP 400"):
        reset_cache(url, "auto", "m")


def test_without_cached_tokens_in_usage_a_reset_is_not_called_verified() -> None:
    with answering(200, (None, None, None)) as url:
        done = reset_cache(url, "auto", None)
    assert (done.how, done.verified) == ("flush_cache", None)


def test_a_server_without_a_route_is_salted_unless_the_route_was_asked_for() -> None:
    with answering(200, (0, 9, 0, 9), path="/none") as url:
        assert reset_cache(url, "auto", None).how == "salt"
        with pytest.raises(UserError, match="no /reset_prefix_cache"):
            reset_cache(url, "reset_prefix_cache", None)


def test_a_sweep_over_an_endpoint_empties_its_cache_before_every_point(tmp_path: Path) -> None:
    profile = dataclasses.replace(FAST, **QUICK)
    with serving(MockConfig(profile, "quick")) as port:
        endpoint = f"  endpoint: http://127.0.0.1:{port}/v1\n"
        text = "- name: a\n  serving: {model: quick, engine: simulated, accelerators: 0}\n" + endpoint
        file = write(tmp_path, text, points="[1, 2]", head=HEAD)
        done = sweep(str(file), "--out", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stderr
    said = [json.loads(p.read_bytes()) for p in (tmp_path / "runs/s/runs").glob("*/serving.json")]
    assert [s["cache_reset"]["verified"] for s in said] == [True, True]
    assert [s["kv_pool"]["tokens"] for s in said] == [64 * 16_384] * 2
