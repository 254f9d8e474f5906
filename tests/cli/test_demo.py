"""`pipegen demo`: what it runs, when it is content, and its page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import example, given, strategies as st

import pipegen as pg
from pipegen.cli import main
from pipegen.cli.demo import BROKEN, CASES, HOSTILE, IMAGES, Outcome, page, pieces_of, run_cases
from pipegen.report.boxes import Box, Scale, boxes_in
from pipegen.testing.fake import FakeEngine

DETECTED = '{"objects":[{"shape":"circle","color":"red","bbox_2d":[100,200,500,1000]}]}'


def scripted(encoded: Any) -> str | pg.GenerationError:
    """What a model would say that answers all of the demo as it should."""
    title = encoded.request.id
    if title == "A broken image":
        return pg.BadImage(0, message="image 0 cannot be decoded")
    if title == "Objects as JSON":
        return DETECTED + "<|im_end|>"
    return {"A stop": "One.\n\nTwo.", "Two stops": "Monday, Thursday, Sunday"}.get(
        title, "<b>Fine & well</b>\x1b[2J<|im_end|>"
    )


@pytest.fixture(scope="module")
def outcomes() -> tuple[Outcome, ...]:
    return run_cases(pg.route(FakeEngine(scripted)))


def test_all_cases_ride_in_one_call() -> None:
    engine = FakeEngine(scripted)
    outcomes = run_cases(pg.route(engine))
    assert [outcome.case for outcome in outcomes] == list(CASES)
    assert all(outcome.good for outcome in outcomes)
    assert [len(call) for call in engine.calls] == [len(CASES) + 3]  # one case draws four samples


def test_it_is_not_content_when_the_broken_image_succeeds_or_another_fails_or_runs_on() -> None:
    def wrong(encoded: Any) -> str | pg.GenerationError:
        title = encoded.request.id
        return (
            pg.BadImage(0)
            if title == "An image in words"
            else (
                "on and on"
                if title in ("A broken image", "A question in text")
                else scripted(encoded)
            )
        )

    bad = [
        outcome.case.title for outcome in run_cases(pg.route(FakeEngine(wrong))) if not outcome.good
    ]
    assert bad == ["An image in words", "A question in text", "A broken image"]


def test_the_hostile_prompt_brings_no_control_token_in(outcomes: tuple[Outcome, ...]) -> None:  # T3
    (hostile,) = (outcome for outcome in outcomes if outcome.case.question == HOSTILE)
    plain = "".join(text for text, control in hostile.prompt if not control)
    assert HOSTILE in plain
    assert [text for text, control in hostile.prompt if control].count("<|im_start|>") == 2
    obeyed = Outcome(
        case=hostile.case, slot=hostile.slot, prompt=(*hostile.prompt, ("<|im_start|>", True))
    )
    assert not obeyed.good


def test_pieces_are_the_text_with_control_tokens_apart_and_runs_counted() -> None:
    engine = FakeEngine("")
    ids = engine.tokenizer.encode("a<|im_end|>b<|image_pad|><|image_pad|>")
    assert pieces_of(pg.route(engine), ids) == (
        ("a", False),
        ("<|im_end|>", True),
        ("b", False),
        ("<|image_pad|> x 2", True),
    )


# The page


class Seen(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_holds_everything_itself_and_runs_its_own_script_alone(
    outcomes: tuple[Outcome, ...],
) -> None:
    html = page(outcomes, 1.0)
    seen = Seen(html)
    assert not {"link", "iframe", "object"} & {tag for tag, _ in seen.tags}
    assert [attrs for tag, attrs in seen.tags if tag == "script"] == [{}]
    script = html.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = (attrs["content"] for tag, attrs in seen.tags if "http-equiv" in attrs)
    assert f"script-src 'sha256-{digest}'" in (policy or "")
    sources = [attrs.get("src") or "" for tag, attrs in seen.tags if tag == "img"]
    assert len(sources) == sum(name != BROKEN for case in CASES for name in case.images)
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    assert not {
        name for _, attrs in seen.tags for name in attrs if name.startswith("on") or name == "href"
    }
    assert not re.search(r"url\(|@import|https?:", html)


def test_what_users_and_models_write_is_text_on_the_page(outcomes: tuple[Outcome, ...]) -> None:
    html = page(outcomes, 1.0)
    assert "&lt;b&gt;Fine &amp; well&lt;/b&gt;" in html
    assert "\x1b" not in html
    assert HOSTILE in "".join(Seen(html).texts)


def test_the_page_shows_text_raw_text_finish_stop_counts_errors_and_boxes(
    outcomes: tuple[Outcome, ...],
) -> None:
    html = page(outcomes, 1.0)
    text = "".join(Seen(html).texts)
    for outcome in outcomes:
        assert outcome.case.title in text
    assert '<span class="token">&lt;|im_end|&gt;</span>' in html
    assert "stop_string" in text
    assert repr("\n\n") in text
    assert "BadImage" in text
    assert "image 0 cannot be decoded" in text
    assert pg.BadImage.default_hint in text
    assert 'style="left:10.00%;top:20.00%;width:40.00%;height:80.00%" title="red circle">' in html


def test_what_came_out_wrong_is_marked(outcomes: tuple[Outcome, ...]) -> None:
    assert "did not come out as expected" not in page(outcomes, 1.0)
    wrong = Outcome(case=outcomes[0].case, slot=outcomes[-1].slot)
    assert "did not come out as expected" in page([wrong], 1.0)


def test_boxes_are_thousandths_of_the_sides() -> None:
    assert boxes_in(DETECTED, (640, 480), "thousandths") == (Box("red circle", 10, 20, 40, 80),)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A red circle.",
        "[1]",
        '{"objects": 5}',
        (
            '{"objects": [5, {"bbox_2d": 7}, {"bbox_2d": [1, 2, 3]}, {"bbox_2d": [1, 2, 3, "4"]},'
            ' {"bbox_2d": [true, 0, 0, 0]}]}'
        ),
        '{"objects":[{"bbox_2d":[0,0,1,NaN]}]}',
        '{"objects":[{"shape"',
    ],
)
def test_an_answer_without_boxes_draws_none(text: str) -> None:
    assert boxes_in(text, (640, 480), "thousandths") == ()


@given(
    st.lists(
        st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False),
        min_size=4,
        max_size=4,
    ),
    st.sampled_from(get_args(Scale)),
)
@example([0, 0, 10**400, -(10**400)], "auto")
@example([0, 0, 10**400, -(10**400)], "thousandths")
def test_boxes_stay_on_their_image(corners: list[float], scale: Scale) -> None:
    (box,) = boxes_in(json.dumps({"objects": [{"bbox_2d": corners}]}), (640, 480), scale)
    assert 0 <= box.left <= box.left + box.width <= 100 + 1e-9
    assert 0 <= box.top <= box.top + box.height <= 100 + 1e-9


# The images


def test_the_shipped_images_are_those_that_are_drawn() -> None:
    image = pytest.importorskip("PIL.Image")
    from training.draw_demo_images import DRAWN, draw_image

    for name in DRAWN:
        with image.open(IMAGES / name) as shipped:
            drawn = draw_image(name)
            assert (shipped.size, shipped.mode, shipped.tobytes()) == (
                drawn.size,
                drawn.mode,
                drawn.tobytes(),
            ), name


def test_the_broken_image_is_half_of_a_good_one() -> None:
    good, broken = ((IMAGES / name).read_bytes() for name in ("shapes.png", BROKEN))
    assert good.startswith(broken)
    assert len(broken) == len(good) // 2


# For real


def test_the_command_runs_the_embedded_model_and_writes_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    with pytest.raises(SystemExit) as leaving:
        main(["demo", "--out", str(tmp_path / "new")])
    shown = capsys.readouterr().out
    assert leaving.value.code == 0, shown
    assert f"{len(CASES)} of {len(CASES)} came out as expected" in shown
    assert "BadImage" in shown
    html = (tmp_path / "new" / "pipegen-demo.html").read_text()
    assert str(tmp_path / "new" / "pipegen-demo.html") in shown
    assert "image file is truncated" in html
