"""A page in Chromium, by its DevTools protocol: expressions are evaluated, and screenshots taken.
Needs Chromium and aiohttp.
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["CHROMIUM", "look"]

_FOUND = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
CHROMIUM = _FOUND if importlib.util.find_spec("aiohttp") is not None else None
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu"),
    *("--disable-dev-shm-usage", "--remote-debugging-port=0", "--no-first-run"),
)


def look(
    page: Path, expressions: Sequence[str], *, width: int = 1280, screenshot: Path | None = None
) -> list[Any]:
    """Load the page and evaluate the expressions one after another: their values, and last what the
    browser complained of. `screenshot` is a screenshot.
    """
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as browser:
            try:
                assert browser.stderr is not None
                address = next(
                    line.split()[-1] for line in browser.stderr if "DevTools listening on" in line
                )
                values, shot = asyncio.run(
                    asyncio.wait_for(
                        _asked(address, page.absolute().as_uri(), expressions, width), 60
                    )
                )
            finally:
                browser.kill()
    if screenshot is not None:
        screenshot.write_bytes(shot)
    return values


async def _asked(
    address: str, page: str, expressions: Sequence[str], width: int
) -> tuple[list[Any], bytes]:
    import aiohttp

    numbers = itertools.count(1)
    said: list[Any] = []
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(address, max_msg_size=0) as socket,
    ):

        async def ask(
            method: str, target: str | None = None, until: str | None = None, **params: Any
        ) -> Any:
            """The answer of a method; with `until`, after that event too."""
            number = next(numbers)
            await socket.send_json(
                {
                    "id": number,
                    "method": method,
                    "params": params,
                    **({"sessionId": target} if target else {}),
                }
            )
            answer, event = None, until is None
            while answer is None or not event:
                message = await socket.receive_json()
                if message.get("id") == number:
                    assert "error" not in message, message
                    answer = message["result"]
                event = event or message.get("method") == until
                if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                    said.append(str(message["params"]))
            return answer

        made = await ask("Target.createTarget", url="about:blank")
        target = (await ask("Target.attachToTarget", targetId=made["targetId"], flatten=True))[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            await ask(f"{domain}.enable", target)
        await ask(
            "Emulation.setDeviceMetricsOverride",
            target,
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        await ask("Page.navigate", target, until="Page.loadEventFired", url=page)
        values = []
        for expression in expressions:
            result = await ask(
                "Runtime.evaluate", target, expression=expression, returnByValue=True
            )
            values.append(result["result"].get("value"))
        shot = await ask("Page.captureScreenshot", target, format="png")
        return [*values, said], base64.b64decode(shot["data"])
