"""An HTTP server whose pages a test sets, on a thread."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class Pages:
    """`pages`: path → body, or a status; `seen` collects (path, Authorization)."""

    def __init__(self) -> None:
        self.pages: dict[str, str | int] = {}
        self.seen: list[tuple[str, str | None]] = []
        self.url = ""


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Pages]:
    state = Pages()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.seen.append((self.path, self.headers.get("Authorization")))
            page = state.pages.get(self.path, 404)
            body = page.encode() if isinstance(page, str) else b"no"
            self.send_response(page if isinstance(page, int) else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
