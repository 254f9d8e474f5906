"""Stage A: every image has its summary or its error, in its own group, in its own place."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from training.scenes import Scene
from typer.testing import CliRunner

import pipegen as pg
from pipegen.testing.fake import FakeEngine

Shell = Callable[..., subprocess.CompletedProcess[str]]
Draw = Callable[[Path, int], Scene]


@pytest.fixture(scope="module")
def stage_a(program: Callable[[str], ModuleType]) -> Any:
    return program("stage_a")


@pytest.fixture
def folders(tmp_path: Path, draw_scene: Draw) -> dict[str, list[Scene | None]]:
    """Three groups of one, three and two images; the second image of the second group is broken,
    and a text lies beside the images.
    """
    scenes: dict[str, list[Scene | None]] = {}
    for group, count in (("one", 1), ("three", 3), ("two", 2)):
        folder = tmp_path / group
        folder.mkdir()
        scenes[str(folder)] = [
            draw_scene(folder / f"{n}.png", 10 * count + n) for n in range(count)
        ]
    broken = tmp_path / "three" / "1.png"
    broken.write_bytes(broken.read_bytes()[:100])
    scenes[str(tmp_path / "three")][1] = None
    (tmp_path / "two" / "notes.txt").write_text("not an image")
    return scenes


@pytest.mark.slow
def test_images_come_back_in_their_groups_and_a_broken_one_marks_itself_alone(
    folders: dict[str, list[Scene | None]], shell: Shell
) -> None:
    pytest.importorskip("torch")
    done = shell(
        "stage_a",
        "--model",
        "embedded",
        "--batch",
        2,
        "--system",
        "Answer in upper case.",
        "--max-pixels",
        128 * 128,
        *folders,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["group"] for line in lines] == list(folders)
    for line in lines:
        for image, scene in zip(line["images"], folders[line["group"]], strict=True):
            assert image["ok"] == (scene is not None)
            if scene is None:
                assert image["image"] == "1.png"
                assert image["error"]["type"] == "BadImage"
            else:
                assert [
                    image["summary"].count(f"{thing.color} {thing.shape}".upper())
                    for thing in scene
                ] == [1] * len(scene)
                assert image["finish"] == "eos"
    assert "6 images in 3 groups: 5 summaries, 1 failed" in done.stderr
    assert done.returncode == 1


def test_a_group_holds_the_images_of_its_subfolders_too_in_the_order_in_which_people_count(
    stage_a: Any, tmp_path: Path, draw_scene: Draw
) -> None:
    (tmp_path / "2").mkdir()
    for number, name in enumerate(("10.png", "9.PNG", "2/1.png")):
        draw_scene(tmp_path / name, number)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pg.backends, "load", lambda config: pg.route(FakeEngine("seen")))
        done = CliRunner().invoke(stage_a.app, ["--model", "m", str(tmp_path)])
    (line,) = (json.loads(line) for line in done.stdout.splitlines())
    assert [image["image"] for image in line["images"]] == ["2/1.png", "9.PNG", "10.png"]


def test_a_model_that_is_not_there_is_bad_usage(stage_a: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = CliRunner().invoke(stage_a.app, ["--model", "./nowhere", str(tmp_path)])
    assert done.exit_code == 2
    assert "'./nowhere'" in done.output


def test_ranks_share_the_groups_without_remainder_or_overlap(stage_a: Any) -> None:
    work = list("abcdefg")
    for world_size in range(1, 10):
        shares = [stage_a.shard(work, rank, world_size) for rank in range(world_size)]
        assert sorted(item for share in shares for item in share) == work
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
    with pytest.raises(ValueError, match="rank takes a whole number from 0 to 1, not 2"):
        stage_a.shard(work, 2, 2)


def test_a_rank_that_does_not_exist_is_bad_usage(stage_a: Any, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        stage_a.app, ["--model", "embedded", "--rank", "2", "--world-size", "2", str(tmp_path)]
    )
    assert done.exit_code == 2
    assert "rank" in done.output


def test_batches_are_full_across_groups(stage_a: Any, tmp_path: Path) -> None:
    groups = []
    for number in range(5):
        # the first group is empty
        paths = tuple(tmp_path / f"{number}-{n}.png" for n in range(number))
        for path in paths:
            path.write_bytes(b"broken" if path.name == "3-1.png" else path.name.encode())
        groups.append(stage_a.Group(tmp_path, paths))
    engine = FakeEngine(lambda encoded: str(encoded.request.id).rsplit("/", 1)[-1])
    asked = [
        (image, stage_a.request_of(image, "system", "prompt"))
        for group in groups
        for image in group.images
    ]
    lines = list(stage_a.regroup(groups, pg.imap_keyed(pg.route(engine), asked, in_flight=4)))
    assert [len(call) for call in engine.calls] == [4, 4, 1]  # ten images, of which one is broken
    assert [[image["image"] for image in line["images"]] for line in lines] == [
        [path.name for path in group.images] for group in groups
    ]
    assert all(
        image.get("summary", "3-1.png") == image["image"]
        for line in lines
        for image in line["images"]
    )
    assert [image["image"] for line in lines for image in line["images"] if not image["ok"]] == [
        "3-1.png"
    ]


def test_a_group_is_written_before_the_next_is_begun(stage_a: Any, tmp_path: Path) -> None:
    groups = [stage_a.Group(tmp_path, (tmp_path / name,)) for name in ("first", "second")]
    taken = []

    def answers() -> Any:
        for name in ("first", "second"):
            taken.append(name)
            yield from pg.imap_keyed(
                pg.route(FakeEngine(name)), [(tmp_path / name, {"prompt": name})]
            )

    assert next(stage_a.regroup(groups, answers()))["images"][0]["summary"] == "first"
    assert taken == ["first"]


def test_the_help_says_what_it_does(stage_a: Any) -> None:
    done = CliRunner().invoke(stage_a.app, ["--help"])
    assert done.exit_code == 0
    assert "one summary for each image" in done.output
    assert "--world-size" in done.output
