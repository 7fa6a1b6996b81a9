"""A headless Chromium driven over the DevTools protocol: load a page, run JavaScript, take pictures."""

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import websocket

WAIT_S = 120.0


def find_chromium() -> str | None:
    """The browser of $CHROMIUM, or one on the PATH."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome", "chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


class Browser:
    """One page. What it logs and requests is collected in `console`, `errors` and `requests`, and in `blocked` the
    addresses that the page's own policy kept it from requesting."""

    def __init__(self, profile: Path, width: int = 1600, height: int = 1000) -> None:
        binary = find_chromium()
        assert binary is not None
        self.console: list[str] = []
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.blocked: set[str] = set()
        self._addresses: dict[str, str] = {}
        self._number = 0
        self._process = subprocess.Popen(
            [
                binary, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                "--no-first-run", "--disable-dev-shm-usage", "--disable-extensions", "--disable-component-update",
                "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={profile}",
                f"--window-size={width},{height}", "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._socket = self._connect(profile)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait(timeout=30)

    def _connect(self, profile: Path) -> websocket.WebSocket:
        port_file = profile / "DevToolsActivePort"
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            if self._process.poll() is not None:
                raise RuntimeError(f"the browser ended with status {self._process.returncode}")
            if port_file.is_file() and "\n" in (text := port_file.read_text()):
                with urllib.request.urlopen(f"http://127.0.0.1:{int(text.split()[0])}/json/list") as reply:
                    pages = [entry for entry in json.load(reply) if entry["type"] == "page"]
                if pages:
                    return websocket.create_connection(pages[0]["webSocketDebuggerUrl"], timeout=WAIT_S)
            time.sleep(0.1)
        raise TimeoutError("the browser did not start")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command; events that arrive before its answer are collected."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return dict(message["result"])
            self._event(message)

    def _event(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message["method"] == "Runtime.consoleAPICalled":
            text = " ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"])
            self.console.append(text)
            if params["type"] == "error":
                self.errors.append(text)
        elif message["method"] == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(str(details.get("exception", {}).get("description", details["text"])))
        elif message["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif message["method"] == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
            self._addresses[params["requestId"]] = params["request"]["url"]
        elif message["method"] == "Network.loadingFailed" and params.get("blockedReason") == "csp":
            self.blocked.add(self._addresses[params["requestId"]])

    def forget(self) -> None:
        """Start collecting anew."""
        for collected in (self.console, self.errors, self.requests, self.blocked, self._addresses):
            collected.clear()

    def resize(self, width: int, height: int) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def run(self, code: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        reply = self.send("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in reply:
            details = reply["exceptionDetails"]
            raise RuntimeError(str(details.get("exception", {}).get("description", details["text"])))
        return reply["result"].get("value")

    def wait(self, code: str, seconds: float = WAIT_S) -> Any:
        """Until the expression is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.run(code):
                return value
            time.sleep(0.2)
        raise TimeoutError(f"still false after {seconds:.0f} s: {code}; console: {self.console[-5:]}")

    def picture(self, path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))
        return path
