"""`pipegen view`: pages of results, in words and in a browser; what is hostile stays text."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from support.browser import CHROMIUM, look

import pipegen as pg
from pipegen.cli.app_results import ViewFlags
from pipegen.cli.view import run_view
from pipegen.core.errors import BadImage
from pipegen.io.jsonl import to_plain
from pipegen.records.options import resolve

pytest.importorskip("PIL")

Command = Callable[..., Any]
OPTIONS = resolve(pg.GenerationOptions())
EVIL = (
    "<script>document.title='owned'</script><img src=x"
    " onerror=\"document.title='owned'\">\"'&$cards ${x}</pre></article>"
)


def png(color: str, size: tuple[int, int] = (40, 20)) -> bytes:
    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", size, color).save(data, "PNG")
    return data.getvalue()


def answer(text: str, **more: Any) -> Any:
    values: dict[str, Any] = {
        "raw_text": text,
        "finish": pg.Finish.EOS,
        "prompt_tokens": 3,
        "completion_tokens": 2,
        **more,
    }
    return pg.Success(pg.GenerationResult(text=text, options=OPTIONS, **values))


def results(path: Path, **slots: Any) -> Path:
    path.write_text(
        "".join(
            json.dumps(to_plain(slot, name, metadata={"label": name})) + "\n"
            for name, slot in slots.items()
        )
    )
    return path


class Page(HTMLParser):
    """What a page holds: its elements, and the text of each kind."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def test_a_page_shows_texts_errors_facts_and_counts(command: Command, tmp_path: Path) -> None:
    source = results(
        tmp_path / "r.jsonl",
        a=answer("Hello", raw_text="Hello<|im_end|>"),
        b=answer("Ho", finish=pg.Finish.LENGTH),
        c=pg.Failure(BadImage(0)),
    )
    ran = command("view", source)
    assert (ran.code, ran.err) == (0, f"{tmp_path / 'r.html'}: 3 results\n")
    page = Page(tmp_path / "r.html")
    seen = [attributes["data-kind"] for tag, attributes in page.elements if tag == "button"]
    assert seen == ["", "eos", "length", "BadImage"]
    assert [
        (attributes["data-id"], attributes["data-kind"])
        for tag, attributes in page.elements
        if tag == "article"
    ] == [
        ("a", "eos"),
        ("b", "length"),
        ("c", "BadImage"),
    ]
    assert "3 results, 1 error" in page.texts
    for text in ("Hello", "Hello<|im_end|>", "label", "prompt tokens"):
        assert text in page.texts


def test_what_is_hostile_stays_text_in_every_field(command: Command, tmp_path: Path) -> None:
    line = {
        "id": EVIL,
        "ok": True,
        "text": EVIL,
        "raw_text": EVIL + "raw",
        "prompt_text": EVIL,
        "finish": EVIL,
        "stop": EVIL,
        "route": EVIL,
        "reasoning": EVIL,
        "tool_calls": [{"function": {"name": EVIL}}],
        "metadata": {EVIL: EVIL},
        "options": {},
    }
    failed = {"id": EVIL + "2", "ok": False, "error": {"type": EVIL, "message": EVIL, "hint": EVIL}}
    boxed = {
        **line,
        "id": "3",
        "text": json.dumps([{"label": EVIL, "bbox_2d": [0, 0, 9, 9]}]),
        "samples": [{"text": EVIL}, {"text": None}, 5],
    }
    source, other = tmp_path / "r.jsonl", tmp_path / "o.jsonl"
    source.write_text("".join(json.dumps(one) + "\n" for one in (line, failed, boxed)))
    other.write_text(json.dumps({**line, "text": "x" + EVIL}) + "\n")
    asked = tmp_path / "in.jsonl"
    asked.write_text(json.dumps({"id": "3", "prompt": EVIL, "images": [EVIL]}) + "\n")
    for arguments in ((source,), (source, other)):
        out = tmp_path / f"page-{len(arguments)}.html"
        assert command("view", *arguments, "--input", asked, "-o", out).code == 0
        page = Page(out)
        assert (page.count("script"), page.count("img"), page.count("article")) == (1, 0, 3)
        assert not [
            name for _, attributes in page.elements for name in attributes if name.startswith("on")
        ]
        assert html.escape(EVIL) in out.read_text() or len(arguments) == 2
        if CHROMIUM is not None:
            title, count, _ = look(
                out, ["document.title", "document.getElementById('count').textContent"]
            )
            assert "owned" not in title.replace(EVIL, "")
            assert count == "3 of 3 shown"


def test_images_and_boxes_come_from_the_input_of_the_run(command: Command, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png("red"))
    asked = tmp_path / "in.jsonl"
    lines = [
        {"id": "a", "prompt": "What?", "images": ["a.png"]},
        {"id": "gone", "prompt": "What?", "images": ["gone.png"]},
        {"id": "never", "prompt": "x"},
    ]
    asked.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = answer('{"objects": [{"label": "cat", "bbox_2d": [0, 0, 500, 1000]}]}')
    source = results(tmp_path / "r.jsonl", gone=pg.Failure(BadImage(0)), a=found, extra=answer("x"))
    assert command("view", source, "--input", asked).code == 0
    page = Page(tmp_path / "r.html")
    (image,) = [attributes for tag, attributes in page.elements if tag == "img"]
    assert (image["src"] or "").startswith("data:image/png;base64,")
    (box,) = [
        attributes for tag, attributes in page.elements if attributes.get("class") == "box high"
    ]
    assert box["style"] == "left:0.00%;top:0.00%;width:50.00%;height:100.00%"
    assert any("gone.png" in text and "cannot be read" in text for text in page.texts)
    assert "user: [image] What?" in page.texts


def test_one_result_is_one_result(command: Command, tmp_path: Path) -> None:
    one = results(tmp_path / "one.jsonl", a=answer("x"))
    ran = command("view", one)
    assert ran.err == f"{tmp_path / 'one.html'}: 1 result\n"
    assert "1 result, 0 errors" in Page(tmp_path / "one.html").texts
    other = results(tmp_path / "other.jsonl", a=answer("y"))
    assert command("view", one, other, "-o", tmp_path / "two.html").code == 0
    assert "1 result, 0 errors; 1 differs from other.jsonl" in Page(tmp_path / "two.html").texts


def test_a_long_prompt_is_folded_behind_its_beginning(command: Command, tmp_path: Path) -> None:
    long = "Once upon a time. " * 20
    prompts = {"short": "Hi", "long": long, "lines": "a\nb", "none": "", "evil": EVIL + "\n" + EVIL}
    source = tmp_path / "r.jsonl"
    lines = (
        {"id": name, "ok": True, "text": "x", "finish": "eos", "prompt_text": prompt}
        for name, prompt in prompts.items()
    )
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert command("view", source).code == 0
    text = (tmp_path / "r.html").read_text()
    shown = {
        name: re.search(rf'data-id="{name}".*?</article>', text, re.DOTALL)[0] for name in prompts
    }  # type: ignore[index]
    assert '<pre class="prompt">Hi</pre>' in shown["short"]
    assert [("<details" in card, 'class="prompt"' in card) for card in shown.values()] == [
        (False, True),
        (True, True),
        (True, True),
        (False, False),
        (True, True),
    ]
    assert f'<span>{long[:100]} ...</span></summary><pre class="prompt">{long}' in shown["long"]
    assert "<details open" not in text
    assert "<script>document" not in text


def test_brief_lines_are_shown(command: Command, tmp_path: Path) -> None:
    source = tmp_path / "r.jsonl"
    two = answer("one", samples=(answer("one").unwrap(), answer("two").unwrap()))
    slots = {"a": two, "b": pg.Failure(BadImage(0))}
    source.write_text(
        "".join(json.dumps(to_plain(slot, name, brief=True)) + "\n" for name, slot in slots.items())
    )
    assert command("view", source).code == 0
    page = Page(tmp_path / "r.html")
    for text in ("one", "two", "eos", "2 results, 1 error"):
        assert text in page.texts


@pytest.mark.parametrize("times", [3, [3], [["x"]], [[10**400]], "x", None])
def test_times_of_frames_in_another_form_are_no_times(
    command: Command, tmp_path: Path, times: object
) -> None:
    source = tmp_path / "r.jsonl"
    line = {**to_plain(answer("one"), "a", brief=True), "video_times": times}
    source.write_text(json.dumps(line) + "\n")
    assert command("view", source).code == 0
    assert "one" in Page(tmp_path / "r.html").texts


def test_images_of_every_size_are_shown_large_enough_for_their_boxes(
    command: Command, tmp_path: Path
) -> None:
    sizes = {"large": (2400, 1200), "small": (40, 20), "tall": (30, 600), "plain": (600, 300)}
    for name, size in sizes.items():
        (tmp_path / f"{name}.png").write_bytes(png("red", size))
    asked = tmp_path / "in.jsonl"
    asked.write_text(
        "".join(
            json.dumps({"id": name, "prompt": "?", "images": [f"{name}.png"]}) + "\n"
            for name in sizes
        )
    )
    boxes = [
        {"label": "cat", "bbox_2d": [0, 0, 900, 1000]},
        {"label": "<b>", "bbox_2d": [500, 500, 510, 510]},
    ]
    source = results(
        tmp_path / "r.jsonl",
        **{name: answer("x" if name == "plain" else json.dumps(boxes)) for name in sizes},
    )
    assert command("view", source, "--input", asked).code == 0
    page = Page(tmp_path / "r.html")
    figures = [attributes["style"] for tag, attributes in page.elements if tag == "figure"]
    assert figures == [
        "--small:480px;--large:1200px",
        "--small:240px;--large:1200px",
        "--small:24px;--large:60px",
        "--small:320px;--large:1200px",
    ]
    frames = [
        attributes["class"]
        for tag, attributes in page.elements
        if tag == "button" and "data-of" not in attributes
    ]
    assert frames == ["frame", "frame coarse", "frame", "frame"]
    drawn = [
        (attributes["class"], attributes["title"])
        for tag, attributes in page.elements
        if (attributes.get("class") or "").startswith("box")
    ]
    assert drawn[:2] == [("box high", "cat"), ("box", "<b>")]
    assert page.count("li") == 6
    for text in ("1 cat", "2 <b>", "cat", "<b>"):
        assert text in page.texts


def test_the_columns_of_the_input_are_those_of_the_job(
    command: Command, generate: Command, tmp_path: Path
) -> None:
    asked = tmp_path / "in.jsonl"
    asked.write_text(json.dumps({"id": "a", "question": "What is it?"}) + "\n")
    generate(asked, "-o", tmp_path / "out.jsonl", "--map", "prompt=question", "--brief")
    ran = command("view", tmp_path / "out.jsonl")
    assert (ran.code, f"--input {asked}" in ran.err) == (0, True)
    assert "What is it?" not in Page(tmp_path / "out.html").texts
    for flags in (("--input", asked), ("--image-root", tmp_path)):
        assert command("view", tmp_path / "out.jsonl", *flags).code == 0
        assert "What is it?" in Page(tmp_path / "out.html").texts
    asked.unlink()
    assert command("view", tmp_path / "out.jsonl").code == 0


@pytest.mark.parametrize("column", ["question", "text", "model"])
def test_a_column_is_shown_that_a_table_has_under_another_name(
    command: Command, generate: Command, tmp_path: Path, column: str
) -> None:
    pytest.importorskip("pyarrow")
    asked, out = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    asked.write_text(json.dumps({"id": "a", column: "What is it?"}) + "\n")
    assert generate(asked, "-o", out, "--map", f"user={column}", "--brief").code == 0
    assert command("view", out).code == 0
    assert "user: What is it?" in Page(tmp_path / "out.html").texts


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_the_image_of_one_question_is_shown_where_its_folder_is_named(
    command: Command, generate: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.png").write_bytes(png("red"))
    out = tmp_path / f"out.{form}"
    assert generate("--prompt", "What?", "--image", "a.png", "-o", out).code == 0
    for flags, count in (((), 0), (("--image-root", "."), 1)):
        assert command("view", out, *flags).code == 0
        assert (tmp_path / "out.html").read_text().count("<img") == count


@pytest.mark.parametrize("flags", [(), ("--image-root", "mine")])
@pytest.mark.parametrize("linked", [False, True])
def test_what_a_foreign_job_names_is_not_read(
    command: Command,
    generate: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: Any,
    linked: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.mkdir()
    mine.mkdir()
    (theirs / "in.jsonl").write_text(json.dumps({"id": "line 1", "prompt": "Hi"}) + "\n")
    out = theirs / "out.jsonl"
    generate(theirs / "in.jsonl", "-o", out)
    secret = tmp_path / "secret.txt"
    secret.write_text("my password\n")
    named = secret
    if linked:
        named = out.with_name("out.jsonl.job") / "in.txt"
        named.symlink_to(secret)
    said = out.with_name("out.jsonl.job") / "command.json"
    said.write_text(
        json.dumps(
            {**json.loads(said.read_text()), "source": str(named), "image_root": str(tmp_path)}
        )
    )
    assert command("view", out, *flags).code == 0
    assert "my password" not in (theirs / "out.html").read_text()


@pytest.mark.parametrize("flags", [(), ("--image-root", "theirs")])
def test_images_that_a_foreign_table_names_are_not_read(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: Any
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "private.png").write_bytes(png("red"))
    (tmp_path / "theirs" / "a.png").write_bytes(png("red"))
    private = str(tmp_path / "private.png")
    images = [private, (tmp_path / "private.png").as_uri(), str(tmp_path / "theirs" / "a.png")]
    frames = [{"frames": [image], "times": [0.0]} for image in images[:2]]
    for name, field, values in (("r", "images", images), ("v", "videos", frames)):
        rows = [{"id": number, "prompt": "?", field: [one]} for number, one in enumerate(values)]
        pg.write_table(f"theirs/{name}.parquet", [(row, answer("x")) for row in rows])
    for name, shown in (("r", 1 if flags else 0), ("v", 0)):
        assert command("view", f"theirs/{name}.parquet", *flags).code == 0
        page = Page(tmp_path / "theirs" / f"{name}.html")
        assert len([tag for tag, _ in page.elements if tag == "img"]) == shown


def test_a_table_of_results_brings_its_own_prompts_and_images(
    command: Command, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    rows = [
        {"id": 1, "prompt": "What?", "image": png("blue"), "label": "sky"},
        {"id": 2, "prompt": "And?", "image": b"broken", "label": "sea"},
    ]
    pg.write_table(
        tmp_path / "r.parquet",
        zip(
            rows,
            [answer("one", samples=(answer("one").unwrap(), answer("two").unwrap())), answer("x")],
            strict=True,
        ),
    )
    assert command("view", tmp_path / "r.parquet").code == 0
    page = Page(tmp_path / "r.html")
    assert page.count("img") == 1
    for text in ("one", "two", "sky", "user: [image] What?"):
        assert text in page.texts
    ran = command("view", tmp_path / "r.parquet", "--open", "-o", tmp_path / "no" / "x.html")
    assert ran.code == 2


def test_two_files_stand_side_by_side_with_differing_words_marked(
    command: Command, tmp_path: Path
) -> None:
    one = results(
        tmp_path / "one.jsonl",
        a=answer("a red cat"),
        b=answer("same"),
        c=pg.Failure(BadImage(0)),
        d=answer("only here"),
        e=pg.Failure(BadImage(0)),
    )
    other = results(
        tmp_path / "other.jsonl",
        a=answer("a blue cat"),
        b=answer("same"),
        c=answer("fine"),
        e=pg.Failure(pg.Timeout("slow")),
    )
    assert command("view", one, other, "-o", tmp_path / "x.html").code == 0
    text = (tmp_path / "x.html").read_text()
    assert "a <mark>red</mark> cat" in text
    assert "a <mark>blue</mark> cat" in text
    page = Page(tmp_path / "x.html")
    seen = [attributes["data-same"] for tag, attributes in page.elements if tag == "article"]
    assert seen == ["0", "1", "0", "0", "0"]
    assert "5 results, 2 errors; 4 differ from other.jsonl" in page.texts
    chips = [attributes for tag, attributes in page.elements if tag == "button"]
    assert [(chip["data-of"], chip["data-kind"], chip.get("class")) for chip in chips] == [
        ("kind", "", None),
        ("kind", "eos", None),
        ("kind", "BadImage", "bad"),
        ("other", "", None),
        ("other", "eos", None),
        ("other", "not in this file", None),
        ("other", "Timeout", "bad"),
    ]
    assert [attributes["data-other"] for tag, attributes in page.elements if tag == "article"] == [
        *("eos", "eos", "eos"),
        *("not in this file", "Timeout"),
    ]
    assert "not in this file" in page.texts


def test_many_results_make_a_folder_of_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = results(
        tmp_path / "r.jsonl", **{f"n{number}": answer(f"text {number}") for number in range(7)}
    )
    assert run_view(ViewFlags(results=source), rows=3) == 0
    folder = tmp_path / "r.pages"
    seen = sorted(path.name for path in folder.iterdir())
    assert seen == ["index.html", "page-0002.html", "page-0003.html"]
    pages = [Page(folder / name) for name in ("index.html", "page-0002.html", "page-0003.html")]
    assert [page.count("article") for page in pages] == [3, 3, 1]
    seen = [attributes["href"] for tag, attributes in pages[1].elements if tag == "a"]
    assert seen == ["index.html", "page-0002.html", "page-0003.html"]
    assert all("7 results, 0 errors" in page.texts for page in pages)
    assert "7 results on 3 pages" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"prompt": "Hi"}\n', "takes a result with an id, as pipegen generate writes it"),
        (b"no JSON\n", "not results of pipegen generate: line 1: Expecting value"),
        (None, "cannot be read or written: No such file or directory"),
    ],
)
def test_what_is_no_result_is_bad_usage(
    command: Command, tmp_path: Path, data: bytes | None, words: str
) -> None:
    if data is not None:
        (tmp_path / "r.jsonl").write_bytes(data)
    ran = command("view", tmp_path / "r.jsonl")
    assert ran.code == 2
    assert "PosixPath" not in ran.err
    assert words in " ".join(ran.err.split())
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("command.json", " -o results.jsonl writes those of this job"),
        ("job.json", "of a program, where pg.finished_rows(folder, pairs) gives its results"),
        ("other", "is a folder, not a file of results"),
    ],
)
def test_of_the_folder_of_a_job_it_says_how_its_results_are_written(
    command: Command, tmp_path: Path, file: str, words: str
) -> None:
    (tmp_path / file).write_text("{}")
    for files in ((tmp_path,), (results(tmp_path / "r.jsonl", a=answer("x")), tmp_path)):
        ran = command("view", *files)
        assert ran.code == 2
        assert words in " ".join(ran.err.split())


def test_a_file_that_is_not_there_is_not_judged_by_its_name(
    command: Command, tmp_path: Path
) -> None:
    assert "No such file or directory" in command("view", tmp_path / "none.job").err


def test_wrong_flags_are_bad_usage(command: Command, tmp_path: Path) -> None:
    source = results(tmp_path / "r.jsonl", a=answer("x"))
    assert "takes one of auto, thousandths" in " ".join(
        command("view", source, "--boxes", "inches").err.split()
    )
    assert "is a folder; give a file in it" in " ".join(
        command("view", source, "-o", tmp_path).err.split()
    )


def test_a_table_that_holds_no_results_is_bad_usage(command: Command, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"prompt": ["a"]}), tmp_path / "in.parquet")
    assert "it has no columns ok, text and finish" in " ".join(
        command("view", tmp_path / "in.parquet").err.split()
    )


def test_batch_answers_are_shown_too(command: Command, generate: Command, tmp_path: Path) -> None:
    body = {"model": "any", "messages": [{"role": "user", "content": "Hi"}]}
    lines = [
        {"custom_id": n, "method": "POST", "url": "/v1/chat/completions", "body": b}
        for n, b in (("a", body), ("b", {**body, "stream": True}))
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    generate(tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl")
    assert command("view", tmp_path / "out.jsonl").code == 0
    assert "Hello END of it" in Page(tmp_path / "out.html").texts
    assert "2 results, 1 error" in Page(tmp_path / "out.html").texts


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_browser_filters_by_the_endings_of_both_files(tmp_path: Path, command: Command) -> None:
    cut = answer("x", finish=pg.Finish.LENGTH)
    one = results(tmp_path / "one.jsonl", a=answer("x"), b=answer("x"), c=cut, d=cut)
    other = results(tmp_path / "other.jsonl", a=answer("x"), b=cut, c=answer("x"), d=cut)
    command("view", one, other, "-o", tmp_path / "x.html")

    def clicked(of: str, kind: str) -> str:
        return (
            f"document.querySelector('button[data-of={of}][data-kind=\"{kind}\"]').click();"
            " [...document.querySelectorAll('article')].filter(a => a.offsetHeight > 0)"
            ".map(a => a.dataset.id).join('')"
        )

    asked = [clicked("kind", "eos"), clicked("other", "length"), clicked("kind", "")]
    assert look(tmp_path / "x.html", asked) == ["ab", "b", "bd", []]


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
@pytest.mark.parametrize("size", [(2400, 1200), (40, 20), (20, 40)])
def test_in_a_browser_labels_show_their_numbers_and_a_click_enlarges(
    tmp_path: Path, command: Command, size: tuple[int, int]
) -> None:
    (tmp_path / "a.png").write_bytes(png("red", size))
    asked = tmp_path / "in.jsonl"
    asked.write_text(json.dumps({"id": "a", "prompt": "?", "images": ["a.png"]}) + "\n")
    boxes = [{"label": "a cat", "bbox_2d": [n * 90, n * 90, n * 90 + 20, 999]} for n in range(11)]
    source = results(tmp_path / "r.jsonl", a=answer(json.dumps(boxes)))
    command("view", source, "--input", asked)
    sides = "(r => [Math.round(r.width), Math.round(r.height)])(%s.getBoundingClientRect())"
    least = "Math.min(...[...document.querySelectorAll('.box span')].map(s => s.offsetWidth))"
    found = look(
        tmp_path / "r.html",
        [
            sides % "document.querySelector('.frame')",
            least,
            "document.querySelector('.frame').click(); "
            + sides % "document.querySelector('.frame')",
            "document.documentElement.scrollWidth <= innerWidth",
        ],
    )
    before, smallest, after, fits = found[:4]
    assert max(before) in (240, 480)
    assert smallest >= 16
    assert max(after) > 2 * max(before)
    assert fits
    assert found[4] == []


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_browser_filters_by_error_text_and_id(tmp_path: Path, command: Command) -> None:
    slots = {
        f"r{n}": pg.Failure(BadImage(0)) if n % 5 == 0 else answer(f"text number {n}")
        for n in range(20)
    }
    one = results(tmp_path / "one.jsonl", **slots)
    other = results(tmp_path / "other.jsonl", **{**slots, "r3": answer("another text")})
    command("view", one, other, "-o", tmp_path / "x.html")

    def entered(field: str, value: str) -> str:
        event = "change" if field == "same" else "input"
        return (
            f"(f => {{ f.value = '{value}'; f.dispatchEvent(new Event('{event}')); return"
            f" document.getElementById('count').textContent; }})({field})"
        )

    clicked = (
        "(b => { b.click(); return document.getElementById('count').textContent + '; ' +"
        " b.getAttribute('aria-pressed'); })"
    )
    asked = [
        "document.getElementById('count').textContent",
        clicked + "(document.querySelector('button[data-kind=BadImage]'))",
        (
            "[...document.querySelectorAll('article')].filter(a => a.offsetHeight > 0).map(a =>"
            " a.dataset.id).join(' ')"
        ),
        clicked + "(document.querySelector('button[data-kind=\"\"]'))",
        entered("document.getElementById('text')", "number 1"),
        entered("document.getElementById('id')", "R11"),
        entered("document.getElementById('text')", ""),
        entered("document.getElementById('id')", ""),
        (
            "(f => { f.value = '0'; f.dispatchEvent(new Event('change')); return"
            " document.getElementById('count').textContent; })(document.getElementById('same'))"
        ),
        "document.documentElement.scrollWidth <= innerWidth",
    ]
    values = look(tmp_path / "x.html", asked, width=400)
    assert values == [
        "20 of 20 shown",
        "4 of 20 shown; true",
        "r0 r5 r10 r15",
        "20 of 20 shown; true",
        "9 of 20 shown",
        "1 of 20 shown",
        "1 of 20 shown",
        "20 of 20 shown",
        "1 of 20 shown",
        True,
        [],
    ]


def test_results_of_equal_ids_are_compared_by_their_order(command: Command, tmp_path: Path) -> None:
    lines = [json.dumps({**to_plain(answer(text)), "id": "same"}) for text in ("x", "y")]
    for name in ("one", "two"):
        (tmp_path / name).write_text("\n".join(lines))
    assert command("view", tmp_path / "one", tmp_path / "two", "-o", tmp_path / "o.html").code == 0
    assert "0 differ" in (tmp_path / "o.html").read_text()
