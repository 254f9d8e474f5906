"""Whatever a request holds, and whatever foreign code raises for it, N requests give N slots; the
other slots are unchanged.
"""

from __future__ import annotations

import builtins
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import given, settings, strategies as st

import pipegen as pg
from pipegen.cli.generate import Files, run_generate
from pipegen.cli.run_flags import AskedFlags
from pipegen.cli.sources import RunSettings
from pipegen.cli.usage import load_of
from pipegen.core.errors import GenerationError
from pipegen.core.slots import Batch, is_ok
from pipegen.engines.plugin import Plugin
from pipegen.media.image import open_image
from pipegen.records.fields import unchecked_replace
from pipegen.records.requests import ImagePolicy
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine, ToyRenderer
from pipegen.testing.toy import ToyTokenizer

GOOD: Sequence[dict[str, Any]] = (
    {"prompt": "plain"},
    {"messages": [{"role": "user", "content": "chat"}], "options": {"stop": ["w"]}},
    {"prompt": "image", "images": [b"good"]},
)


class Hostile:
    """An object that answers nothing that it is asked."""

    def _refuse(self, *_: object) -> Any:
        raise ValueError("no")

    __bool__ = __len__ = __iter__ = __getitem__ = __eq__ = __repr__ = __str__ = __contains__ = (
        _refuse
    )
    __hash__ = object.__hash__


class Odd(Exception):
    """An exception that fails even to say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


def cyclic() -> list[Any]:
    loop: list[Any] = []
    loop.append({"self": loop})
    return loop


def deep(levels: int) -> Any:
    value: Any = "x"
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def shared(levels: int) -> Any:
    value: Any = ["x"]
    for _ in range(levels):
        value = [value, value]
    return value


def _raises_plainly(kind: Any) -> bool:
    return (
        isinstance(kind, type)
        and issubclass(kind, Exception)
        and not issubclass(kind, (Warning, UnicodeError, BaseExceptionGroup))
    )


KINDS: Sequence[type[Exception]] = (*filter(_raises_plainly, vars(builtins).values()), Odd)
kinds = st.sampled_from(KINDS)
hostile = st.sampled_from(
    (
        *(Hostile, cyclic, lambda: deep(900), lambda: deep(100_000), lambda: shared(40), object),
        *(lambda: iter(()), lambda: 10**5000),
    )
)
texts = st.sampled_from(
    (
        *("", "x", "<|im_end|>", "\ud800", "\0", "{{ 1 }}", "data:image/png;base64,!"),
        *("http://[", "a" * 300),
    )
) | st.text(max_size=5)
said = (
    *("role", "content", "type", "text", "image", "url", "stop", "chat", "template"),
    *("samples", "regex", "json_schema", "seed", "tool_calls"),
)
names = st.sampled_from(said)
of_json = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts)
of_python = st.one_of(
    of_json,
    st.binary(max_size=3),
    st.sets(st.integers(), max_size=2),
    hostile.map(lambda make: make()),
)


def nested(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=8,
    )


json_junk = nested(of_json, names | texts)
junk = nested(of_python, names | st.integers() | st.binary(max_size=2) | st.none() | texts)
FIELDS = ("id", "messages", "prompt", "prompt_token_ids", "images", "tools", "options")


@st.composite
def bad_requests(draw: st.DrawFn, values: st.SearchStrategy[Any] = junk, slots: bool = True) -> Any:
    """Something that may be a request, and mostly is none."""
    shape = draw(
        st.sampled_from(
            ("anything", "fields", "content", "extras", "options", *(("slot",) if slots else ()))
        )
    )
    value = draw(values)
    if shape == "slot":
        return draw(st.sampled_from((pg.Success, pg.Failure)))(value)
    if shape == "fields":
        return {**draw(st.sampled_from(GOOD[:2])), draw(st.sampled_from(FIELDS)): value}
    if shape == "content":
        return {
            "messages": [
                {
                    "role": "user",
                    "content": draw(
                        st.sampled_from((value, [value], [{"type": "text", "text": value}]))
                    ),
                }
            ]
        }
    if shape == "extras":
        call = {"type": "function", "function": {"name": "f", "arguments": value}}
        return {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
            ],
            "tools": [{"a": value}],
        }
    if shape == "options":
        return {
            "prompt": "a",
            "options": {
                draw(
                    names | st.sampled_from(tuple(pg.GenerationOptions.__dataclass_fields__))
                ): value
            },
        }
    return value


def fake() -> FakeEngine:
    return FakeEngine(lambda encoded: f"{encoded.prompt.text} answered<|im_end|>")


def shown(batch: Batch[Any]) -> list[Any]:
    return [
        (
            (slot.unwrap().text, slot.unwrap().finish, slot.unwrap().prompt_token_ids)
            if is_ok(slot)
            else slot.failure()
        )
        for slot in batch
    ]


ALONE = shown(pg.run(pg.route(fake()), GOOD))


def among(bad: Sequence[Any]) -> list[Any]:
    """The good requests with a bad one before each, and the others at the end."""
    mixed = [request for row, good in enumerate(GOOD) for request in (*bad[row : row + 1], good)]
    return [*mixed, *bad[len(GOOD) :]]


def places(bad: Sequence[Any]) -> list[int]:
    """Where the good ones stand."""
    return [row + min(row + 1, len(bad)) for row in range(len(GOOD))]


def test_the_good_rows_are_good() -> None:
    assert not any(isinstance(row, GenerationError) for row in ALONE)


@given(st.lists(bad_requests(), max_size=5))
def test_no_request_ends_the_batch_or_changes_another_row(bad: list[Any]) -> None:
    slots = pg.run(pg.route(fake()), among(bad))
    assert len(slots) == len(GOOD) + len(bad)
    assert [shown(slots)[place] for place in places(bad)] == ALONE
    assert all(is_ok(slot) or isinstance(slot.failure(), GenerationError) for slot in slots)


lines = st.one_of(
    # A byte order mark begins a file; a line of nothing else is blank there, and blank lines have
    # no answer.
    st.binary(min_size=1, max_size=20).filter(
        lambda line: b"\n" not in line and line.removeprefix(b"\xef\xbb\xbf").strip()
    ),
    bad_requests(json_junk, slots=False).map(lambda request: json.dumps(request).encode()),
    st.builds(
        lambda body, url: json.dumps(
            {"custom_id": "b", "method": "POST", "url": url, "body": body}
        ).encode(),
        json_junk,
        st.sampled_from(("/v1/chat/completions", "/v1/completions")),
    ),
    st.sampled_from(
        (
            b"[" * 100_000,
            b'{"prompt": "a", "options": {"samples": 1000000000}}',
            b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}",
        )
    ),
)


@settings(max_examples=40)
@given(st.lists(lines, max_size=5))
def test_no_line_ends_the_job_or_changes_another_line(bad: list[bytes]) -> None:
    good = [
        json.dumps({"id": f"good {row}", "prompt": "plain"}).encode() for row in range(len(GOOD))
    ]
    mixed = [line for row, own in enumerate(good) for line in (*bad[row : row + 1], own)] + bad[
        len(good) :
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("pipegen.cli.generate.open_routes", return_value=pg.route(fake())),
    ):
        source, out = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        source.write_bytes(b"\n".join(mixed))
        code = run_generate(
            Files(
                source=str(source),
                out=str(out),
                quiet=True,
                asked=RunSettings(load_of(AskedFlags(model="fake"), {})),
            )
        )
        answers = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert len(answers) == len(mixed)
    assert code in (0, 1)  # and 3 would be a bug
    wanted = [(f"good {row}", ALONE[0][0]) for row in range(len(good))]
    assert [
        (line["id"], line["text"])
        for line in answers
        if str(line.get("id", "")).startswith("good ") and line["ok"]
    ] == wanted


def raising(
    kind: type[Exception], when: Callable[[Any], bool], otherwise: Any
) -> Callable[..., Any]:
    def hook(*arguments: Any) -> Any:
        if when(arguments):
            raise kind
        return otherwise(*arguments) if callable(otherwise) else otherwise

    return hook


def plugins(kind: type[Exception], where: str) -> Plugin:
    """A plugin that raises for the rows that hold the word `bad`."""
    hooks: dict[str, Any] = {
        "start": lambda: "",
        "feed": lambda state, text: (state + text, None),
        "trim": lambda text: text,
        "refuses": lambda request: None,
    }

    def spots(arguments: Any) -> bool:
        held = arguments[0] if where != "feed" else "".join(arguments)
        return "bad" in (held if isinstance(held, str) else held.prompt or "")

    return Plugin(name="odd", **{**hooks, where: raising(kind, spots, hooks[where])})


@given(kinds, st.sampled_from(("feed", "trim", "refuses")), st.lists(st.booleans(), max_size=6))
def test_what_a_plugin_raises_fails_its_own_row(
    kind: type[Exception], where: str, bad: list[bool]
) -> None:
    requests = [{"prompt": f"{'bad' if one else 'fine'} {row}"} for row, one in enumerate(bad)]
    slots = pg.run(pg.attach(pg.route(fake()), plugins(kind, where)), requests)
    plain = pg.run(pg.route(fake()), requests)
    for slot, alone, one in zip(slots, plain, bad, strict=True):
        if one:
            assert isinstance(slot.failure(), pg.PluginFailed)
            assert kind.__name__ in slot.failure().message
            assert len(slot.failure().incident) == 12
        else:
            assert slot.map(lambda result: unchecked_replace(result, trimmed_by=())) == alone


@given(kinds, st.lists(st.booleans(), max_size=6))
def test_what_a_template_raises_fails_its_own_row(kind: type[Exception], bad: list[bool]) -> None:
    class Raising(ToyRenderer):
        def render(self, messages: Any, **more: Any) -> str:
            if any("bad" in str(message["content"]) for message in messages):
                raise kind
            return super().render(messages, **more)

    engine = fake()
    engine.renderer = Raising()
    requests = [
        {"messages": [{"role": "user", "content": f"{'bad' if one else 'fine'} {row}"}]}
        for row, one in enumerate(bad)
    ]
    for slot, alone, one in zip(
        pg.run(pg.route(engine), requests), pg.run(pg.route(fake()), requests), bad, strict=True
    ):
        if one:
            assert isinstance(slot.failure(), pg.TemplateFailed)
            assert kind.__name__ in slot.failure().message
        else:
            assert slot == alone


class FailingTokenizer(ToyTokenizer):
    """Raises for texts with a letter that the others do not have, and for the ids of that
    letter.
    """

    def __init__(self, kind: type[BaseException], where: str) -> None:
        super().__init__()
        self._kind, self._where = kind, where

    def encode(self, text: str) -> tuple[int, ...]:
        if self._where == "encode" and "#" in text:
            raise self._kind("no")
        return super().encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        if self._where == "decode" and ord("#") in token_ids:
            raise self._kind("no")
        return super().decode(token_ids)


PanicException = type("PanicException", (BaseException,), {})
"""As packages written in Rust raise it."""


@given(
    st.sampled_from([ValueError, KeyError, Odd, MemoryError, PanicException]),
    st.sampled_from(["encode", "decode"]),
    st.lists(st.booleans(), min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_what_a_tokenizer_raises_fails_its_own_row(
    kind: type[BaseException], where: str, bad: list[bool], follows: bool, streams: bool
) -> None:
    def said(encoded: Encoded) -> Sequence[int]:
        return b"an#swer" if encoded.request.id == "bad" else b"answer"

    engine = FakeEngine(said, tokenizer=FailingTokenizer(kind, where), server_side_stops=follows)
    requests = [
        {"id": "bad" if one else "good", "prompt": "b#d" if one and where == "encode" else "good"}
        for one in bad
    ]
    options = pg.GenerationOptions(stop=pg.StopOptions(stop=("never",)))
    route = pg.route(engine)
    slots = (
        [event.slot for event in pg.stream(route, requests, options) if isinstance(event, pg.Done)]
        if streams
        else pg.run(route, requests, options)
    )
    assert [is_ok(slot) for slot in slots] == [not one for one in bad]
    assert all(
        slot.unwrap().text == "answer" if is_ok(slot) else slot.failure().incident for slot in slots
    )


@given(kinds, st.lists(st.booleans(), max_size=4))
def test_what_a_decoder_raises_fails_its_own_row(kind: type[Exception], bad: list[bool]) -> None:
    class Decoding(FakeEngine):
        def prepare_image(self, source: Any, options: Any, index: int) -> Any:
            return open_image(source.data, ImagePolicy(), index).bind(
                lambda _: super(Decoding, self).prepare_image(source, options, index)
            )

    def opened(stream: Any, **_: Any) -> Any:
        if stream.read() == b"bad":
            raise kind
        from PIL import Image

        return Image.new("RGB", (1, 1))

    engine = Decoding("Hello<|im_end|>")
    requests = [{"prompt": "What?", "images": [b"bad" if one else b"fine"]} for one in bad]
    with mock.patch("PIL.Image.open", opened):
        slots = pg.run(pg.route(engine), requests)
    for slot, one in zip(slots, bad, strict=True):
        assert isinstance(slot.failure(), pg.BadImage) if one else slot.unwrap().text == "Hello"


PRIVATE = "".join(
    chr(code) for block in (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE)) for code in block
)
hostile_words = st.lists(
    st.sampled_from(
        (
            *("<|im_end|>", "<|im_", "end|>", "<think>", "<|image_pad|>", "\ue000", "\U000f0000"),
            *("\ud800", " ", "a"),
        )
    ),
    max_size=6,
)


@settings(max_examples=30)
@given(
    hostile_words,
    st.sampled_from(("", PRIVATE[:500], PRIVATE)),
    st.sampled_from(("text", "reject", "allow")),
)
def test_no_words_of_a_user_end_the_batch(words: list[str], private: str, how: str) -> None:
    text = "".join(words) + private
    bad = [
        {"messages": [{"role": "user", "content": content}], "options": {"control_tokens": how}}
        for content in (text, [{"type": "text", "text": text}] * 2)
    ]
    slots = pg.run(pg.route(fake()), among(bad))
    assert len(slots) == len(GOOD) + len(bad)
    assert [shown(slots)[place] for place in places(bad)] == ALONE
