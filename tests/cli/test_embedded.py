"""`pipegen generate` with the embedded model: the same laws, with real weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipegen.cli import main
from pipegen.cli.demo import BROKEN, IMAGES

pytest.importorskip("transformers")
pytest.importorskip("torch")


def generate(*arguments: str | Path) -> object:
    with pytest.raises(SystemExit) as leaving:
        main(["generate", *(str(argument) for argument in arguments), "--model", "embedded"])
    return leaving.value.code


# C8
def test_mixed_lines_come_out_in_order_and_their_options_give_the_same_again(
    tmp_path: Path, written: Any
) -> None:
    lines: list[Any] = [
        {"id": "chat", "messages": [{"role": "user", "content": "What is 2 + 3?"}]},
        {"id": "image", "prompt": "Describe the image.", "images": [str(IMAGES / "one.png")]},
        {"id": "broken", "prompt": "Describe the image.", "images": [str(IMAGES / BROKEN)]},
        {
            "id": "poem",
            "messages": [{"role": "user", "content": "Write a poem."}],
            "options": {"stop": ["\n\n"]},
        },
        {
            "id": "sampled",
            "prompt": "1, 2, 3,",
            "options": {"temperature": 1.0, "seed": 5, "max_new_tokens": 8, "logprobs": True},
        },
    ]
    source, out, again = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "again.jsonl"
    source.write_text("\n".join(map(json.dumps, lines)))
    assert generate(source, "-o", out, "--max-new-tokens", "40", "--image-root", "/") == 1
    first = written(out)
    assert [(line["id"], line["ok"]) for line in first] == [
        ("chat", True),
        ("image", True),
        ("broken", False),
        ("poem", True),
        ("sampled", True),
    ]
    assert first[2]["error"]["type"] == "BadImage"
    assert first[1]["image_grid_thw"]
    assert (first[3]["finish"], first[3]["stop"]) == ("stop_string", "\n\n")
    assert len(first[4]["logprobs"]) == first[4]["completion_tokens"]

    source.write_text(
        "\n".join(
            json.dumps({**line, "options": result["options"]})
            for line, result in zip(lines, first, strict=True)
            if result["ok"]
        )
    )
    assert generate(source, "-o", again, "--image-root", "/") == 0
    calls = ("prompt_token_ids", "token_ids", "text", "options", "finish", "image_digests")
    assert [{name: line[name] for name in calls} for line in written(again)] == [
        {name: line[name] for name in calls} for line in first if line["ok"]
    ]


def test_a_folder_gets_its_sidecars(tmp_path: Path) -> None:
    for name in ("one.png", BROKEN):
        (tmp_path / name).write_bytes((IMAGES / name).read_bytes())
    assert (
        generate(
            tmp_path,
            "--prompt",
            "Describe the image.",
            "--sidecar",
            "txt",
            "--max-new-tokens",
            "40",
        )
        == 1
    )
    assert (tmp_path / "one.txt").read_text()
    assert not (tmp_path / "broken.txt").exists()


def test_a_setting_that_cannot_be_kept_here_is_refused_by_its_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hi"}\n')
    with pytest.raises(SystemExit) as left:
        main(
            [
                *("generate", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")),
                *("--model", "embedded", "--device", "xpu:7"),
            ]
        )
    shown = " ".join(capsys.readouterr().err.split())
    assert left.value.code == 2
    assert "Invalid value for --device: there is no 'xpu:7' here" in shown
    assert not (tmp_path / "out.jsonl.job").exists()
