"""A headless Chromium on a file, with no network: what it complains of, what it asks for, how it looks.

Speaks the DevTools protocol over the browser's own socket. The browser is ended whatever happens.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-dev-shm-usage", "--remote-debugging-port=0",
    "--host-resolver-rules=MAP * ~NOTFOUND", "--hide-scrollbars",
)  # fmt: skip


@dataclass
class Opened:
    """What the browser did with a page."""

    console: list[str] = field(default_factory=list)  # errors and warnings
    requests: list[str] = field(default_factory=list)  # every URL asked for
    wide: int = 0  # of the document, CSS pixels: beyond the window's the page overflows
    data: Any = None  # what the page's JSON parses to
    title: str = ""
    ground: str = ""  # colour of the background


def look(page: Path, shot: Path | None, *, width: int = 1100, dark: bool = False, whole: bool = True) -> Opened:
    """Open a file in a window so wide, and keep a picture of it."""
    return asyncio.run(_look(page, shot, width, dark, whole))


async def _look(page: Path, shot: Path | None, width: int, dark: bool, whole: bool) -> Opened:
    assert PROGRAM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        browser = await asyncio.create_subprocess_exec(
            PROGRAM,
            *_FLAGS,
            f"--user-data-dir={home}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "HOME": home},
        )
        try:
            async with asyncio.timeout(90), aiohttp.ClientSession() as session:
                port = await _port(Path(home))
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tabs = await answer.json(content_type=None)
                url = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    return await _visit(_Talk(socket), page, shot, width, dark, whole)
        finally:
            browser.kill()
            await browser.wait()


async def _port(home: Path) -> str:
    while True:
        told = home / "DevToolsActivePort"
        if told.exists() and told.read_text().strip():
            return told.read_text().split()[0]
        await asyncio.sleep(0.1)


class _Talk:
    """Commands one after another; events in between are kept in `seen`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self.seen = Opened()
        self.loaded = False

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._event(message)

    async def until_loaded(self) -> None:
        while not self.loaded:
            self._event(await self._socket.receive_json())

    def _event(self, message: dict[str, Any]) -> None:
        name, told = message.get("method"), message.get("params", {})
        if name == "Log.entryAdded":
            self.seen.console.append(told["entry"]["text"])
        elif name == "Runtime.consoleAPICalled":
            self.seen.console.append(str(told["args"]))
        elif name == "Runtime.exceptionThrown":
            self.seen.console.append(str(told["exceptionDetails"]))
        elif name == "Network.requestWillBeSent":
            self.seen.requests.append(told["request"]["url"])
        elif name == "Page.loadEventFired":
            self.loaded = True


async def _visit(talk: _Talk, page: Path, shot: Path | None, width: int, dark: bool, whole: bool) -> Opened:
    for domain in ("Page", "Log", "Runtime", "Network"):
        await talk.call(f"{domain}.enable")
    await talk.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
    )
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    await talk.call("Emulation.setEmulatedMedia", features=[scheme])
    await talk.call("Page.navigate", url=page.resolve().as_uri())
    await talk.until_loaded()
    talk.seen.wide = int(await _value(talk, "document.documentElement.scrollWidth"))
    talk.seen.data = await _value(talk, "JSON.parse(document.getElementById('advise-data').textContent)")
    talk.seen.title = await _value(talk, "document.title")
    talk.seen.ground = await _value(talk, "getComputedStyle(document.body).backgroundColor")
    if shot is not None:
        picture = await talk.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        shot.write_bytes(base64.b64decode(picture["data"]))
    return talk.seen


async def _value(talk: _Talk, expression: str) -> Any:
    found = await talk.call("Runtime.evaluate", expression=expression, returnByValue=True)
    assert "exceptionDetails" not in found, found
    return found["result"].get("value")
