"""The detector's PNGs: boxes where the objects are, truth on the left and prediction on the right;
engines that cannot are refused before they load.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from PIL import Image
from training.scenes import Scene
from typer.testing import CliRunner

import pipegen as pg
from pipegen.testing import strategies
from pipegen.testing.fake import FakeEngine

Shell = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def vis_tools(program: Callable[[str], ModuleType]) -> Any:
    return program("vis_tools")


def truth_of(scene: Scene, width: int, height: int) -> list[dict[str, Any]]:
    sides = (width, height, width, height)
    return [
        {
            "shape": t.shape,
            "color": t.color,
            "box": [edge * side / 1000 for edge, side in zip(t.box, sides, strict=True)],
        }
        for t in scene
    ]


def test_every_image_is_drawn_and_a_broken_one_only_told_of(
    tmp_path: Path, shell: Shell, draw_scene: Callable[..., Scene]
) -> None:
    pytest.importorskip("torch")
    lines: list[dict[str, Any]] = []
    for number, (height, width) in enumerate(((128, 128), (192, 320), (256, 192))):
        scene = draw_scene(tmp_path / f"{number}.png", number, count=3, height=height, width=width)
        lines.append({"image": f"{number}.png", "objects": truth_of(scene, width, height)})
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n")
    lines.insert(1, {"image": "broken.png", "objects": []})
    truth = tmp_path / "truth.jsonl"
    truth.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = shell(
        "vis_tools",
        "--model",
        "embedded",
        "--batch",
        3,
        "--balanced-json",
        "--forbid-repeated-objects",
        truth,
        tmp_path / "out",
    )
    assert done.returncode == 1, done.stderr
    assert "4 images: 3 drawn with what was seen, 1 broken or unreadable" in done.stderr
    told = [
        json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    ]
    assert [one["image"] for one in told] == [line["image"] for line in lines]
    assert told[1]["error"]["type"] == "BadImage"
    assert sorted(path.name for path in (tmp_path / "out").glob("*.png")) == [
        "00000-0.png",
        "00002-1.png",
        "00003-2.png",
    ]
    for line, one in zip(lines, told, strict=True):
        if one["ok"]:
            assert one["raw_text"].startswith(one["text"])
            assert [thing["label"] for thing in one["objects"]] == [
                f"{thing['shape']} {thing['color']}" for thing in line["objects"]
            ]
            with Image.open(tmp_path / line["image"]) as image:
                for seen, there in zip(one["objects"], line["objects"], strict=True):
                    off = max(abs(a - b) for a, b in zip(seen["box"], there["box"], strict=True))
                    # at most one step of the lattice on which the model was trained
                    assert off <= 0.101 * max(image.size)


@pytest.mark.parametrize("lacking", ["logits_processor", "watch"])
def test_an_engine_that_lacks_what_the_plugins_need_is_refused_before_it_is_called(
    vis_tools: Any, lacking: str
) -> None:
    engine = FakeEngine("[]", name="other", honours=pg.ENGINES["hf"] - {lacking})
    with pytest.raises(pg.UnsupportedPlugin) as raised:
        vis_tools.plugged(pg.route(engine), ["bbox_2d"])
    refused = raised.value
    assert isinstance(refused, pg.UnsupportedPlugin)
    assert f"needs {lacking}, which other does not offer" in refused.message
    assert engine.calls == []


def test_the_refusal_is_bad_usage_and_nothing_is_loaded_or_written(
    vis_tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine("[]", name="other")
    monkeypatch.setattr(pg.backends, "load", lambda config: pg.route(engine))
    (tmp_path / "truth.jsonl").write_text('{"image": "a.png", "objects": []}\n')
    done = CliRunner().invoke(
        vis_tools.app,
        [
            "--model",
            "m",
            "--forbid-repeated-objects",
            str(tmp_path / "truth.jsonl"),
            str(tmp_path / "out"),
        ],
    )
    assert done.exit_code == 2
    assert "logits_processor" in done.output
    assert not (tmp_path / "out").exists()
    assert engine.calls == []


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([], []),
        (["--balanced-json"], ["balanced_json"]),
        (["--forbid-repeated-objects"], ["forbid_repeated_objects"]),
        (
            ["--forbid-repeated-objects", "--balanced-json"],
            ["balanced_json", "forbid_repeated_objects"],
        ),
    ],
)
def test_plugins_are_off_unless_their_flags_are_given(
    vis_tools: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    names: list[str],
) -> None:
    seen: list[list[str]] = []
    plugged = vis_tools.plugged

    def noted(*said: Any, **more: Any) -> Any:
        made = plugged(*said, **more)
        seen.append([plugin.name for plugin in made.engine.plugins])
        return made

    monkeypatch.setattr(vis_tools, "plugged", noted)
    monkeypatch.setattr(
        pg.backends, "load", lambda config: pg.route(FakeEngine("[]", honours=pg.ENGINES["hf"]))
    )
    (tmp_path / "truth.jsonl").write_text("")
    done = CliRunner().invoke(
        vis_tools.app,
        ["--model", "m", *flags, str(tmp_path / "truth.jsonl"), str(tmp_path / "out")],
    )
    assert (done.exit_code, seen) == (0, [names]), done.output


def test_boxes_are_scaled_by_their_own_side_and_turned_the_right_way(vis_tools: Any) -> None:
    (thing,) = vis_tools.things_of(
        '{"objects": [{"bbox_2d": [900, 100, 500, 200], "label": "dog"}]}', 2000, 100
    )
    assert thing == vis_tools.Thing("dog", (1000.0, 10.0, 1800.0, 20.0))


@pytest.mark.parametrize(
    "text",
    [
        *("", "a red circle", "[1]", '[{"label": "dog"}]', '[{"bbox_2d": [1, 2, 3]}]'),
        *('[{"bbox_2d": [1, 2, 3, "4"]}]', '[{"a": '),
    ],
)
def test_an_answer_of_another_form_is_a_value_error(vis_tools: Any, text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        vis_tools.things_of(text, 10, 10)


def test_the_stage_of_the_program_is_one_more_between_stop_and_trim(vis_tools: Any) -> None:
    route = pg.route(FakeEngine('Look: ```[{"bbox_2d": [1, 2, 3, 4]}]```'))
    engine = route.engine
    by_hand = (
        pg.stages.resolve(engine)
        >> pg.stages.render(engine)
        >> pg.stages.tokenize(engine)
        >> pg.stages.fit(engine)
        >> pg.call(engine)
        >> pg.stages.decode(engine)
        >> pg.stages.stop(engine)
        >> pg.pure("bare", vis_tools.bare)
        >> pg.stages.trim(engine)
    )
    edited = vis_tools.bared(route)
    assert [part.name for part in edited.parts] == [part.name for part in by_hand.parts]
    asked: list[Any] = [{"prompt": "?"}, {"prompt": "?", "options": {"stop": ["4"]}}]
    slots = pg.run(edited, asked)
    assert slots == pg.run(by_hand, asked)
    assert [slot.unwrap().text for slot in slots] == [
        '[{"bbox_2d": [1, 2, 3, 4]}]',
        'Look: ```[{"bbox_2d": [1, 2, 3, ',
    ]
    assert pg.run(edited.remove("bare"), asked) == pg.run(route, asked)


def test_a_route_without_stop_stays_as_it_is(vis_tools: Any) -> None:
    route = pg.route(FakeEngine("[]")).remove("stop")
    assert vis_tools.bared(route) is route


@settings(max_examples=50)
@given(decoded=strategies.decoded(strategies.toy_engine()))
def test_the_stage_leaves_text_out_and_changes_nothing_else(vis_tools: Any, decoded: Any) -> None:
    (slot,) = pg.pure("bare", vis_tools.bare).apply((pg.Success(decoded),))
    kept = slot.unwrap()
    assert kept.text in decoded.text
    assert bool(kept.text) == bool(decoded.text)
    assert dataclasses.replace(kept, text=decoded.text) == decoded


def test_an_unreadable_answer_is_drawn_with_a_note(vis_tools: Any, tmp_path: Path) -> None:
    Image.new("RGB", (20, 10), "gray").save(tmp_path / "a.png")
    line = {"image": "a.png", "objects": [{"label": "dog", "box": [1, 1, 5, 5]}]}
    (slot,) = pg.run(pg.route(FakeEngine("no idea")), [{"prompt": "?"}])
    told = vis_tools.looked_at(line, tmp_path, slot, tmp_path / "drawn.png")
    assert not told["ok"]
    assert told["note"].startswith("unreadable answer")
    assert told["text"] == "no idea"
    assert (tmp_path / "drawn.png").exists()


def test_the_truth_is_on_the_left_and_the_prediction_on_the_right(vis_tools: Any) -> None:
    truth, seen = (
        [vis_tools.Thing("dog", (0, 0, 50, 100))],
        [vis_tools.Thing("dog", (50, 0, 100, 100))],
    )
    sheet = vis_tools.drawn(Image.new("RGB", (100, 100), "white"), truth, seen)
    red = tuple(bytes.fromhex(vis_tools.COLORS[0][1:]))
    height = vis_tools.MARGIN + vis_tools.LINE + vis_tools.SIDE // 2
    marked = [x for x in range(sheet.width) if sheet.getpixel((x, height)) == red]
    left, right = vis_tools.MARGIN, 2 * vis_tools.MARGIN + vis_tools.SIDE
    lines = [x for x in marked if x - 1 not in marked]
    assert lines == pytest.approx([left, left + 224, right + 224, right + 446], abs=4)
