"""Loading: what is read, what is refused, and what messages never show."""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from support.loading import DATA, POLICY, load, refusal

from pipegen.core.errors import BadImage
from pipegen.core.slots import is_ok
from pipegen.media.source import load_sources
from pipegen.records.messages import ImageSource, shown
from pipegen.records.requests import ImagePolicy, TextGenerationRequest, VlmGenerationRequest

if TYPE_CHECKING:
    import pathlib


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "an image%20?#é.png"
    path.write_bytes(DATA)
    return path


def test_every_kind_of_source_gives_the_same_bytes(file: pathlib.Path) -> None:  # P8
    encoded = base64.b64encode(DATA).decode()
    sources = (
        *(file, str(file), DATA, file.as_uri(), "FILE://localhost" + quote(str(file))),
        f"data:image/png;base64,{encoded}",
        "data:," + quote(DATA),
    )
    assert load(*sources) == [DATA] * len(sources)


def test_a_request_without_images_is_returned_as_it_is() -> None:
    request = TextGenerationRequest(prompt="Hi")
    assert load_sources(request, POLICY).unwrap() is request


def test_the_order_of_images_and_the_text_between_them_stay(tmp_path: pathlib.Path) -> None:  # P6
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode())
    first, second = ({"type": "image", "path": str(tmp_path / name)} for name in "ab")
    content: Any = [
        {"type": "text", "text": "first"},
        first,
        {"type": "text", "text": "then"},
        second,
    ]
    messages: Any = [{"role": "user", "content": content}]
    loaded: Any = load_sources(VlmGenerationRequest(messages=messages), POLICY).unwrap()
    assert [
        getattr(part, "text", None) or part.source.data for part in loaded.messages[0].content
    ] == ["first", b"a", "then", b"b"]


def test_the_same_source_is_read_once(file: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    real = os.open

    def open_and_note(path: Any, *rest: Any, **more: Any) -> int:
        opened.append(path)
        return real(path, *rest, **more)

    monkeypatch.setattr(os, "open", open_and_note)
    assert load(file, file, str(file)) == [DATA] * 3
    assert opened == [str(file)]


def test_the_position_of_the_first_bad_image_is_named(file: pathlib.Path) -> None:
    error = refusal(file, DATA, "no/such/file.png", "neither.png")
    assert isinstance(error, BadImage)
    assert error.index == 2
    assert error.message == "image 2: 'no/such/file.png' cannot be read: No such file or directory"


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/", "a\0b", "\ud800", "x" * 5000])
def test_what_is_no_regular_file_is_refused(path: str) -> None:
    assert "image 0" in refusal(ImageSource(path=path)).message


@pytest.mark.parametrize(
    ("path", "message", "hint"),
    [
        ("{folder}", "is a folder", "images_in"),
        ("a" * 100_000, "(100000 characters) cannot be read", "pass base64 as a data URL"),
        ("s3://bucket/a.png", "'s3://bucket/a.png' cannot be read", "http, https, file and data"),
        ("nowhere.png", "'nowhere.png' cannot be read", "check the path"),
        ("a\0b", "is not a path", "check the path"),
    ],
)
def test_a_path_that_is_no_file_is_told_shortly_and_with_what_to_do(
    path: str, message: str, hint: str, tmp_path: pathlib.Path
) -> None:
    error = refusal(ImageSource(path=path.format(folder=tmp_path)))
    assert message in error.message
    assert len(error.message) < 400
    assert hint in error.hint


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: pathlib.Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe").message


def test_a_file_is_bounded_by_max_bytes(file: pathlib.Path) -> None:
    assert load(file, policy=ImagePolicy(max_bytes=len(DATA))) == [DATA]
    error = refusal(file, policy=ImagePolicy(max_bytes=len(DATA) - 1))
    assert f"more than {len(DATA) - 1} bytes" in error.message
    assert "max_bytes" in error.hint


def test_a_file_that_grows_after_it_was_looked_at_is_bounded_too() -> None:
    # a regular file of size 0
    assert (
        "more than 4 bytes"
        in refusal(ImageSource(path="/proc/self/status"), policy=ImagePolicy(max_bytes=4)).message
    )


# P8
@pytest.mark.parametrize(
    "path",
    ["../outside.png", "{outside}", "link.png", "folder/secret.png", "inside/../../outside.png"],
)
def test_nothing_gets_out_of_the_root(tmp_path: pathlib.Path, path: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside.png"
    (root / "inside").mkdir(parents=True)
    outside.write_bytes(DATA)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "secret.png").write_bytes(DATA)
    (root / "link.png").symlink_to(outside)
    (root / "folder").symlink_to(tmp_path / "hidden")
    policy = ImagePolicy(root=str(root))
    path = path.format(outside=outside)
    for source in (path, "file://" + quote(path)) if path.startswith("/") else (path,):
        assert "is outside" in refusal(source, policy=policy).message


def test_within_the_root_paths_links_and_file_urls_are_read(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "root"
    (root / "inside").mkdir(parents=True)
    (root / "inside" / "a.png").write_bytes(DATA)
    (root / "link.png").symlink_to(root / "inside" / "a.png")
    (tmp_path / "alias").symlink_to(root)
    for name in (root, tmp_path / "alias"):
        sources = (
            root / "inside" / "a.png",
            "inside/a.png",
            "inside/../link.png",
            (root / "link.png").as_uri(),
        )
        assert load(*sources, policy=ImagePolicy(root=str(name))) == [DATA] * len(sources)


def test_a_sibling_whose_name_begins_like_the_root_is_outside(tmp_path: pathlib.Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root2").mkdir()
    (tmp_path / "root2" / "a.png").write_bytes(DATA)
    assert (
        "is outside"
        in refusal(
            tmp_path / "root2" / "a.png", policy=ImagePolicy(root=str(tmp_path / "root"))
        ).message
    )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file://elsewhere/a.png", "another host"),
        ("file:a.png", "absolute path"),
        ("file:///a.png?b", "no query"),
        ("file:///a%00b.png", "is not a path"),
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,@@@@", "bad base64"),
        ("data:image/png;base64,AAA", "bad base64"),
        ("data:image/png;base64,é", "bad base64"),
        ("data:,\ud800", "lone surrogates"),
        ("file:///\ud800", "lone surrogates"),
        ("http://[::1", "malformed URL"),
        ("https://example.org/a.png", "allow_http is off"),
    ],
)
def test_a_bad_url_is_refused_with_its_reason(url: str, words: str) -> None:
    assert words in refusal(url).message


def test_a_source_of_another_scheme_is_refused() -> None:
    assert "ftp://example.org/a.png" in refusal(ImageSource(url="ftp://example.org/a.png")).message


def test_line_breaks_and_percents_in_base64_are_read() -> None:
    assert load(
        "data:;base64," + base64.encodebytes(DATA * 20).decode(), "data:;base64,%41%41%3D%3D"
    ) == [DATA * 20, b"\0"]


@pytest.mark.parametrize(
    "url", ["data:;base64," + "A" * 400, "data:," + "a" * 300, "data:,%41%41%41" + "a" * 298]
)
def test_a_data_url_is_bounded_before_it_is_decoded(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(load(url, policy=ImagePolicy(max_bytes=301))[0] or b"") in (300, 301)
    monkeypatch.setattr(base64, "b64decode", pytest.fail)
    monkeypatch.setattr("pipegen.media.source.unquote_to_bytes", pytest.fail)
    assert (
        "a data URL has more than 200 bytes"
        in refusal(url, policy=ImagePolicy(max_bytes=200)).message
    )


def test_bytes_in_hand_are_taken_as_they_are() -> None:
    assert load(DATA, policy=ImagePolicy(max_bytes=1)) == [DATA]


@pytest.mark.parametrize(
    "url",
    [
        "https://me:SECRET@example.org/a?key=SECRET#SECRET",
        "https://me:SECRET/x@example.org/a",
        "https://me:1/SECRET@example.org/a",
        "http:me:SECRET@example.org",
        "http://[SECRET",
    ],
)
def test_no_message_shows_what_a_url_keeps_to_itself(url: str) -> None:
    assert "SECRET" not in shown(url)
    assert "SECRET" not in str(refusal(url))
    assert "SECRET" not in str(refusal(url, policy=ImagePolicy(allow_http=True, timeout=0.001)))


def test_one_bad_source_fails_its_own_request_only(file: pathlib.Path) -> None:  # B4
    requests = [
        VlmGenerationRequest(prompt="?", images=["missing.png" if row == 9 else file])
        for row in range(32)
    ]
    slots = [load_sources(request, POLICY) for request in requests]
    assert [row for row, slot in enumerate(slots) if not is_ok(slot)] == [9]
