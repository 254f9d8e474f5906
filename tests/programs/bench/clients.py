"""One way of asking a server, in a process of its own: `python clients.py NAME WORK.json`, then
`IN_FLIGHT REQUESTS` on stdin for each run.

WORK.json names the stub's address. An answer holds the seconds, those of the processor, and the
median and the 99th percentile of the requests' own.

That percentile has two levels for pipegen's routes. A batch of 3,000 requests sees about one full
garbage collection, of some 50 ms: requests that are in flight then take so much longer. Compare
trees by many runs, or with `gc.set_threshold(700, 10, 10**6)`.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from measure import peak_memory

QUESTION = "Say what you see. " + "sun moon star lake " * 20
MESSAGES = [{"role": "user", "content": QUESTION}]
BODY = {"model": "stub", "messages": MESSAGES, "max_tokens": 32, "temperature": 0.0}
IDS = list(range(300, 400))
ONE: dict[
    str,
    Callable[[str], Awaitable[tuple[Callable[[], Awaitable[Any]], Callable[[], Awaitable[Any]]]]],
] = {}
"""Arms that send one request at a time: given the address, what sends one, and what closes."""


def arm(name: str) -> Callable[[Any], Any]:
    def keep(make: Any) -> Any:
        ONE[name] = make
        return make

    return keep


@arm("bare aiohttp")
async def bare_aiohttp(url: str) -> Any:
    import aiohttp

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
    )

    async def one() -> None:
        async with session.post(f"{url}/v1/chat/completions", json=BODY) as answer:
            await answer.json()

    return one, session.close


@arm("httpx, no limits")
async def bare_httpx(url: str) -> Any:
    import httpx

    client = httpx.AsyncClient(
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None), timeout=600
    )

    async def one() -> None:
        (await client.post(f"{url}/v1/chat/completions", json=BODY)).json()

    return one, client.aclose


@arm("niquests")
async def bare_niquests(url: str) -> Any:
    import niquests

    session = niquests.AsyncSession(
        pool_connections=8, pool_maxsize=1_024, disable_http2=True, disable_http3=True
    )

    async def one() -> None:
        answer: Any = await session.post(f"{url}/v1/chat/completions", json=BODY)
        answer.json()

    return one, session.close


@arm("pyreqwest")
async def bare_pyreqwest(url: str) -> Any:
    from pyreqwest.client import ClientBuilder

    client: Any = await ClientBuilder().max_connections(1_024).build().__aenter__()

    async def one() -> None:
        answer = await client.post(f"{url}/v1/chat/completions").body_json(BODY).build().send()
        await answer.json()

    async def close() -> None:
        await client.__aexit__(None, None, None)

    return one, close


@arm("pyqwest")
async def bare_pyqwest(url: str) -> Any:
    import pyqwest

    client = pyqwest.Client(pyqwest.HTTPTransport(enable_otel=False, pool_max_idle_per_host=1_024))

    async def one() -> None:
        answer = await client.post(f"{url}/v1/chat/completions", content=json.dumps(BODY).encode())
        json.loads(answer.content)

    async def close() -> None:
        """It has nothing to close."""

    return one, close


def openai_client(url: str, *, aiohttp: bool) -> Any:
    from openai import AsyncOpenAI, DefaultAioHttpClient

    more: dict[str, Any] = {"http_client": DefaultAioHttpClient()} if aiohttp else {}
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="EMPTY", **more)


async def _async_openai(url: str, *, aiohttp: bool) -> Any:
    client = openai_client(url, aiohttp=aiohttp)

    async def one() -> None:
        await client.chat.completions.create(**BODY)

    return one, client.close


@arm("AsyncOpenAI")
async def async_openai(url: str) -> Any:
    return await _async_openai(url, aiohttp=False)


@arm("AsyncOpenAI, aiohttp")
async def async_openai_aiohttp(url: str) -> Any:
    return await _async_openai(url, aiohttp=True)


class Parsed:
    """What a renderer gives, at no cost, so that the client alone is measured."""

    content, reasoning_content, tool_calls, reasoning_complete = "text", None, (), True


class Renderer:
    supports_tools = True

    def get_stop_token_ids(self) -> list[int]:
        return [1]

    def parse_response(self, ids: list[int], **_: Any) -> Parsed:
        return Parsed()


@arm("renderers.client.generate")
async def renderers_generate(url: str) -> Any:
    from renderers.client import generate

    client, renderer = openai_client(f"{url}/logprobs", aiohttp=False), Renderer()

    async def one() -> None:
        settings = {"max_tokens": 32, "temperature": 0.0}
        await generate(
            client=client,
            renderer=renderer,
            messages=[],
            model="stub",
            prompt_ids=IDS,
            sampling_params=settings,
            max_prompt_len=8_000,
        )  # type: ignore[arg-type]

    return one, client.close


@arm("pipegen's transport")
async def pipegen_transport(url: str) -> Any:
    from pipegen.backends.http.access import access_to
    from pipegen.backends.http.transport import AttemptFailed, Transport
    from pipegen.backends.servers.reading import json_of
    from pipegen.backends.servers.wire import WireRequest
    from pipegen.engines.settings import ServerSettings

    access = access_to(url, default=url, variable="VLLM_API_KEY", api_key=None, headers=None)
    transport = Transport(access, ServerSettings(max_in_flight=1_024))

    async def one() -> None:
        call = transport.row()

        async def attempt() -> Any:
            return json_of(
                (
                    await transport.once(WireRequest(path="/v1/chat/completions", body=BODY), call)
                ).body
            ).unwrap()

        try:
            await attempt()
        except AttemptFailed as failed:
            await transport.retry(failed, attempt, call)

    async def close() -> None:
        transport.close()

    return one, close


async def loop(one: Callable[[], Awaitable[Any]], in_flight: int, requests: int) -> list[float]:
    """So many workers, each sending one request after the other; the seconds of each request."""
    taken: list[float] = []
    left = iter(range(requests))

    async def work() -> None:
        for _ in left:
            begun = time.perf_counter()
            await one()
            taken.append(time.perf_counter() - begun)

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(work())
    return taken


def routes(name: str, url: str, in_flight: int) -> Any:
    """pipegen's routes as their users call them: `arun` with a batch, so what is done before the
    first request and after the last answer counts too.
    """
    import pipegen as pg

    backends: Any = pg.backends
    if name.startswith("pipegen.vllm_server, token ids"):
        route = backends.vllm_server(
            "embedded", base_url=url, served_model_name="stub", max_in_flight=in_flight
        )
        return pg, route, [{"prompt_token_ids": IDS}]
    if name == "pipegen.vllm_server, messages":
        route = backends.vllm_server(
            "embedded", base_url=url, served_model_name="stub", max_in_flight=in_flight
        )
        return pg, route, [{"messages": MESSAGES}]
    route = backends.openai_server(
        "stub", base_url=f"{url}/v1", dialect="vllm", max_in_flight=in_flight
    )
    return pg, route, [{"messages": MESSAGES}]


async def serve(name: str, url: str, out: Any) -> None:
    if name in ONE:
        one, close = await ONE[name](url)

        async def run(in_flight: int, requests: int) -> list[float]:
            return await loop(one, in_flight, requests)

    else:
        made: dict[int, Any] = {}  # a route for each level, which lets so many be in flight

        async def run(in_flight: int, requests: int) -> list[float]:
            if in_flight not in made:
                made[in_flight] = routes(name, url, in_flight)
            pg, route, kind = made[in_flight]
            taken: list[float] = []
            row = type(route.engine).row

            async def timed(asked: Any, deadline: float | None) -> Any:
                begun = time.perf_counter()
                slot = await row(route.engine, asked, deadline)
                taken.append(time.perf_counter() - begun)
                return slot

            route.engine.row = timed
            for slot in await pg.arun(
                route, kind * requests, pg.GenerationOptions(max_new_tokens=32)
            ):
                slot.unwrap()
            return taken

        async def close() -> None:
            for _, route, _ in made.values():
                route.engine.close()

    print(json.dumps({"ready": name}), file=out, flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        in_flight, requests = map(int, line.split())
        begun = time.perf_counter(), time.process_time()
        taken = sorted(await run(in_flight, requests))
        wall, cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
        said: dict[str, Any] = {
            "rate": requests / wall,
            "cpu": cpu / requests,
            "peak": peak_memory(),
        }
        if taken:
            said |= {
                "p50": statistics.median(taken),
                "p99": taken[min(len(taken) - 1, int(0.99 * len(taken)))],
            }
        print(json.dumps(said), file=out, flush=True)
    await close()


def main() -> None:
    name, path = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with open(path, encoding="utf-8") as file:
        url = json.load(file)["url"]
    asyncio.run(serve(name, url, out))


if __name__ == "__main__":
    main()
