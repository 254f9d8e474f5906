"""Memory of a row at a server: what a child process takes at its peak above its start, while this
one serves.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.testing.faulty import FaultyServer

pytest.importorskip("aiohttp")
pytest.importorskip("resource")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/clear_refs").exists(),
        reason="the peak of a process is read from /proc",
    ),
]

MIB = 2**20
CHILD = """
    import gc, io, pathlib, re, resource, sys
    import pipegen as pg

    def peak():
        return int(re.search("VmHWM:\\s+([0-9]+)", pathlib.Path("/proc/self/status").read_text())[1])

    def from_here():
        gc.collect()
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        return peak()

    def asked(url, requests, *, stream=False, **settings):
        with pg.backends.openai_server("toy", base_url=url, dialect="vllm", **settings) as route:
            if not stream:
                return pg.run(route, requests)
            return [event.slot for event in pg.stream(route, requests) if not isinstance(event, pg.Delta)]

    import aiohttp, orjson, PIL.Image, asyncio, concurrent.futures
    PIL.Image.init()
    resource.setrlimit(resource.RLIMIT_AS, (5 * 2**30, 5 * 2**30))
    start = from_here()
"""


def child(work: str, url: str = "") -> tuple[str, float]:
    """What the child prints first, and the bytes that it took above its start."""
    program = textwrap.dedent(CHILD) + textwrap.dedent(work) + "\nprint((peak() - start) * 1024)\n"
    done = subprocess.run(
        [sys.executable, "-c", program, url], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    *output, taken = done.stdout.splitlines()
    return output[0], float(taken)


@pytest.mark.parametrize(
    "url",
    [
        '"data:image/png," + "%41" * (30 * 2**20)',
        '"data:image/png;base64," + "%41" * (30 * 2**20)',
        '"data:;base64," + "A " * (30 * 2**20)',
    ],
)
def test_a_data_url_takes_a_few_times_its_length(url: str) -> None:
    output, taken = child(f"""
        from pipegen.media.source import load_sources
        request = pg.VlmGenerationRequest(prompt="Hi", images=[{url}])
        print(len(load_sources(request, pg.ImagePolicy()).unwrap().sources[0].data))
        """)
    assert int(output) >= 2**24
    assert taken < 450 * MIB


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["flood", "event"])
def test_an_answer_without_end_takes_its_bound(fault: str, stream: bool) -> None:
    with FaultyServer(share=1.0, kinds=(fault,)) as server:
        output, taken = child(
            f"""
            (slot,) = asked(sys.argv[1], [{{"prompt": "Hi"}}], stream={stream}, retries=0)
            print(type(slot.failure()).__name__)
            """,
            server.url,
        )
    assert output == "MalformedResponse"
    assert taken < 200 * MIB


@pytest.mark.parametrize("value", ["[]", "{}", '{"a":{}}', "0.5", '"\\\\u00e9"'])
def test_an_answer_of_nothing_but_small_things_takes_some_times_its_bound(value: str) -> None:
    """Each takes many times as much memory as text."""
    output, taken = child(f"""
        from pipegen.backends.http.client import BASE
        from pipegen.backends.servers.reading import json_of
        value = b'{value}'
        read = json_of(b"[" + b",".join([value] * (BASE // (len(value) + 1))) + b"]")
        print(len(read.unwrap()) > 10**5)
        """)
    assert output == "True"
    assert taken < 900 * MIB


PHOTOS = """
    import numpy
    rng = numpy.random.default_rng(0)
    def photo(orientation):
        small = PIL.Image.fromarray(rng.integers(0, 255, ({height} // 4, {width} // 4, 3), dtype=numpy.uint8)).resize(({width}, {height}))
        exif, buffer = PIL.Image.Exif(), io.BytesIO()
        exif[0x0112] = orientation
        small.save(buffer, "JPEG", quality=90, exif=exif.tobytes())
        return buffer.getvalue()
    photos = [photo({orientation}) for _ in range(4)]
    photos = [bytearray(photos[number % 4]) + str(number).encode() for number in range({count})]  # different ones, each held
    requests = [pg.VlmGenerationRequest(prompt=f"request {{number}}", images=[bytes(data)]) for number, data in enumerate(photos)]
    del photos
    start = from_here()
    slots = asked(sys.argv[1], requests, timeout=250.0)
    print(sum(map(pg.is_ok, slots)))
"""


@pytest.mark.parametrize("orientation", [1, 6])
def test_many_photos_are_made_ready_few_at_a_time(orientation: int) -> None:
    pytest.importorskip("numpy")
    with FaultyServer() as server:
        output, taken = child(
            PHOTOS.format(width=2000, height=1500, orientation=orientation, count=40), server.url
        )
    assert output == "40"
    assert taken < 400 * MIB


def test_only_so_many_bytes_of_bodies_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted at the room that they need."""
    pytest.importorskip("PIL")
    from pipegen.backends.http import transport
    from pipegen.backends.http.gate import Room
    from pipegen.testing.image_files import image_file

    held = list[int]()
    enter = Room.enter

    async def counted(self: Room, size: int) -> None:
        await enter(self, size)
        held.append(self.held)

    monkeypatch.setattr(Room, "enter", counted)
    monkeypatch.setattr(transport, "UPLOAD_BYTES", 30_000)
    image = image_file("BMP", width=100, height=80)
    backends: Any = pg.backends
    with FaultyServer() as server, backends.openai_server("toy", base_url=server.url) as route:
        slots = pg.run(
            route,
            [
                pg.VlmGenerationRequest(prompt=f"request {number}", images=[image])
                for number in range(20)
            ],
        )
    assert all(map(pg.is_ok, slots))
    assert len(held) == 20
    assert max(held) <= 30_000
