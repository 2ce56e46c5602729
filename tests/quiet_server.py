"""HTTP servers on this machine, for tests: they print nothing, and a client that goes away is no error."""

from __future__ import annotations

import http.server
import threading
from typing import Any


class QuietHandler(http.server.BaseHTTPRequestHandler):
    """Answers requests as a test says in `answer`."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        """Answer one request by `send`."""
        raise NotImplementedError

    def do_POST(self) -> None:
        self.answer()

    def send(
        self, status: int, content: bytes, length: int | None = None, headers: dict[str, str] | None = None
    ) -> None:
        """Send an answer; `length` is what it says of itself, if that is not true."""
        self.send_response(status)
        self.send_header("content-length", str(len(content) if length is None else length))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


class QuietServer(http.server.ThreadingHTTPServer):
    """A server on a free port, whose threads end with the test."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: Any) -> None:
        pass


def begin_serving(handler: type[QuietHandler]) -> tuple[QuietServer, str]:
    """A server that has begun to answer, and its address."""
    server = QuietServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"
