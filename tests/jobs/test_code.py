"""A job says where a user's own code is another than that of the rows that it reuses."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.engines.plugin import Plugin
from pipegen.jobs.history import settings_of
from pipegen.testing.fake import FakeEngine

REQUESTS = [{"messages": [{"role": "user", "content": "Hi"}]}]


def made(text: str, **more: Any) -> Any:
    """What `f` is in a program of this text."""
    space: dict[str, Any] = {"__name__": "mine", "functools": functools, "pg": pg, **more}
    exec(text, space)
    return space["f"]


def staged(text: str) -> Any:
    return pg.route(FakeEngine("yes<|im_end|>")) >> pg.pure("mine", made(text))


def asked(text: str) -> Any:
    return pg.pure("mine", made(text)) >> pg.route(FakeEngine("yes<|im_end|>"))


def repeated(text: str) -> Any:
    return pg.repeat(pg.route(FakeEngine("yes<|im_end|>")), made(text), limit=2)


def stepped(text: str) -> Any:
    return pg.turns(pg.route(FakeEngine("yes<|im_end|>")), made(text), limit=2)


def with_tool(text: str) -> Any:
    return pg.turns(pg.route(FakeEngine("yes<|im_end|>")), pg.tools([made(text)]))


def fallen_back(text: str) -> Any:
    routes = [pg.route(FakeEngine("yes<|im_end|>"), name=name) for name in "ab"]
    return pg.fallback(routes[0], routes[1], when=made(text))


def plugged(text: str) -> Any:
    plugin = Plugin(name="mine", trim=made(text))
    return pg.route(FakeEngine("yes<|im_end|>").with_plugin(plugin))


def run(folder: Path, route: Any, **more: Any) -> int:
    with pg.job(route, REQUESTS, folder, **more) as job:
        assert all(map(pg.is_ok, job))
    return job.reused


PLACES: dict[str, tuple[Callable[[str], Any], str, str, str]] = {
    "stage": (staged, "f = lambda r: r", "f = lambda r: r if True and r else r", "stage 'mine'"),
    "before": (asked, "f = lambda r: r", "f = lambda r: r or r", "stage 'mine'"),
    "repeat": (repeated, "f = lambda r: None", "f = lambda r: r and None", "stage 'repeat"),
    "step": (stepped, "f = lambda r: None", "f = lambda r: r and None", "stage 'turns"),
    "tool": (
        with_tool,
        "def f(a: int) -> str:\n return 'b'",
        "def f(a: int) -> str:\n return 'c'",
        "tool 'f'",
    ),
    "when": (fallen_back, "f = lambda e: True", "f = lambda e: False", "stage 'fallback"),
    "plugin": (plugged, "f = lambda t: t", "f = lambda t: t.strip()", "plugin 'mine'"),
}


@pytest.mark.parametrize("place", PLACES)
def test_other_code_of_a_kept_row_is_reported_once(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pipe, one, other, name = PLACES[place]
    caplog.set_level(logging.WARNING, "pipegen")
    assert run(tmp_path, pipe(one)) == 0
    assert run(tmp_path, pipe(f"# the same\n\n{one}")) == 1
    assert not caplog.records
    assert run(tmp_path, pipe(other)) == 1
    (said,) = caplog.messages
    assert f"the code of {name}" in said
    assert "version=" in said
    assert run(tmp_path, pipe(other)) == 1
    assert run(tmp_path, pipe(one), version="2") == 0
    assert len(caplog.records) == 1


HEAD = "def f(r):\n"
SAME = [
    (f"{HEAD} 'words'\n return r", f"{HEAD} 'other words'\n # a comment\n return r"),
    (f"{HEAD} a = r\n return a", f"{HEAD} b = r\n return b"),
    ("import logging\nlog = logging.getLogger('a')\nf = lambda r: (log, r)[1]",) * 2,
    ("class A: pass\na = A()\nf = lambda r, a=a: r",) * 2,
    ("calls = {object(): 1}\ndef g():\n c = calls\n return lambda r: (c, r)[1]\nf = g()",) * 2,
    ("f = lambda r: r if r in {'a', 'b', 'c'} else r",) * 2,
]
_CALLED = "class A:\n def __call__(s, r): return (1, r)[1]\nf = A()"
_HELPED = "class A:\n def h(s): return 1\n def m(s, r): return (s.h(), r)[-1]\nf = A().m"
_WRAPPED = (
    "def d(g):\n @functools.wraps(g)\n def h(r): return g(r)\n return h\n"
    "@d\ndef f(r):\n return ('a', r)[-1]"
)
_OBJECT = "class A:\n def __init__(s, w): s.w = w\n def {}(s, r): return r\nf = A(1){}"
OTHER = [
    ("def g(w):\n return lambda r: (w, r)[1]\nf = g('a')", "'a'", "'b'"),
    ("def g(w):\n return lambda r: (w, r)[1]\nf = g([1, {'a': 2}])", "2}", "3}"),
    ("def g(w):\n return lambda r: (w(1), r)[1]\nf = g(lambda n: n + 1)", "+ 1", "+ 2"),
    ("f = lambda r, w='a': (w, r)[1]", "'a'", "'b'"),
    ("f = lambda r, *, w='a': (w, r)[1]", "'a'", "'b'"),
    ("W = 'a'\nf = lambda r: (W, r)[1]", "'a'", "'b'"),
    ("h = lambda n: n\nf = lambda r: h(r)", "n: n", "n: n or n"),
    ("f = functools.partial(lambda w, r: (w, r)[1], 'a')", "'a'", "'b'"),
    ("f = functools.partial(lambda r, w: (w, r)[1], w='a')", "'a'", "'b'"),
    (_OBJECT.format("__call__", ""), "A(1)", "A(2)"),
    (_OBJECT.format("m", ".m"), "A(1)", "A(2)"),
    (_CALLED, "(1,", "(2,"),
    (_HELPED, "return 1", "return 2"),
    (_WRAPPED, "'a'", "'b'"),
    ("f = lambda r: [1 for _ in 'a'] and r", "[1 ", "[2 "),
]


def of(text: str) -> Any:
    settings = settings_of(staged(text), None, "")
    return settings["code"]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_words_names_and_what_is_not_plain_are_no_other_code(one: str, other: str) -> None:
    assert of(one) == of(other)


@pytest.mark.parametrize(("one", "old", "new"), OTHER)
def test_constants_closures_and_what_is_called_are_code(one: str, old: str, new: str) -> None:
    assert old in one
    assert "mine" in str(of(one))
    assert of(one) == of(one)
    assert of(one) != of(one.replace(old, new))


def test_code_of_pipegen_and_of_another_python_is_not_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    route = pg.route(FakeEngine("yes<|im_end|>"))
    assert "code" not in settings_of(route, None, "")
    caplog.set_level(logging.WARNING, "pipegen")
    run(tmp_path, staged("f = lambda r: r"))
    file = tmp_path / "job.json"
    settings = json.loads(file.read_text())
    for values in (settings, *settings["runs"].values()):
        values["code"]["python"] = "cpython-1"
    file.write_text(json.dumps(settings))
    assert run(tmp_path, staged("f = lambda r: r or r")) == 1
    assert not caplog.records
