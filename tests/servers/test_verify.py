"""`pg.verify` on real servers: nothing is wrong with a right one in 1,000 prompts, and each fault
that is put in on purpose is named, and no other.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import launch
import pytest

import pipegen as pg
from pipegen.report.questions import prompts

WORDS = (
    *("the cat", "sat", "on a mat", "and saw", "two red birds", "fly over green hills", "List"),
    *("months", "Count from 1 to 12", "What is", "日本", "Привет", "🎈", "\n"),
)
END, COMMA = "<|im_end|>", ","


def many(count: int) -> Iterator[dict[str, Any]]:
    """Seeded conversations of one to three turns."""
    draw = random.Random(7)
    for number in range(count):
        roles = ("user", *(("assistant", "user") if number % 4 == 0 else ()))
        turns = [
            {"role": role, "content": " ".join(draw.choices(WORDS, k=draw.choice((1, 3, 8, 30))))}
            for role in roles
        ]
        yield {
            "id": str(number),
            "messages": (
                [{"role": "system", "content": "Be brief."}, *turns] if number % 3 == 0 else turns
            ),
        }


@pytest.mark.parametrize("served", ["vllm-embedded", "vllm-text", "sglang-embedded"], indirect=True)
def test_nothing_is_wrong_with_a_right_server_in_1000_prompts(
    served: Any, hf_of: Callable[[str], pg.Route], capsys: pytest.CaptureFixture[str]
) -> None:
    reference = hf_of(served.model)
    found = pg.verify(
        served.url,
        served.folder,
        many(1000),
        reference=reference,
        precision="float32",
        max_new_tokens=16,
        api_key=served.key,
    )
    with capsys.disabled():
        print(
            f"\n| {served.engine} | {served.model} | verify | {found.answers} answers | spread"
            f" {found.spread:.1e} | margin {found.margin:.1e} |"
        )
    assert found.plain()["faults"] == []
    assert found.right
    assert (found.dialect, found.ways, found.answers) == (served.engine, ("chat", "ids"), 2000)


def edited(folder: str, place: Path, **files: Any) -> str:
    """A copy of a model's folder in which entries of these JSON files are replaced."""
    shutil.copytree(folder, place)
    for name, entries in files.items():
        file = place / f"{name}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | entries))
    return str(place)


def with_other_weights(folder: str, place: Path) -> str:
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, place)
    weights = load_file(place / "model.safetensors")
    torch.manual_seed(0)
    noisy = {
        name: (
            value + 0.5 * value.float().std() * torch.randn(value.shape)
            if value.ndim > 1
            else value
        )
        for name, value in weights.items()
    }
    save_file(
        {name: value.to(weights[name].dtype) for name, value in noisy.items()},
        place / "model.safetensors",
        metadata={"format": "pt"},
    )
    return str(place)


def ids_of(folder: str, *tokens: str) -> list[int]:
    from transformers import AutoTokenizer

    found: list[int] = AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids([*tokens])
    return found


def stops_at_commas(folder: str, place: Path) -> str:
    return edited(folder, place, generation_config={"eos_token_id": ids_of(folder, END, COMMA)})


def runs_on(folder: str, place: Path) -> str:
    (other,) = ids_of(folder, "<|endoftext|>")
    config = json.loads((Path(folder) / "config.json").read_text())
    text = {"text_config": config["text_config"] | {"eos_token_id": other}}
    return edited(
        folder,
        place,
        generation_config={"eos_token_id": other},
        tokenizer_config={"eos_token": "<|endoftext|>"},
        config=text,
    )


def penalises(folder: str, place: Path) -> str:
    return edited(folder, place, generation_config={"repetition_penalty": 1.3})


def as_it_is(folder: str, place: Path) -> str:
    return folder


TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%"
    " endfor %}{{ '<|im_start|>assistant\\n' }}"
)
CUT = ("--allow-auto-truncate", "--context-length", "512")
FAULTS: list[tuple[str, Any, tuple[str, ...], list[str]]] = [
    (
        "vllm",
        as_it_is,
        ("--chat-template", TEMPLATE, "--dtype", "bfloat16"),
        ["template", "precision"],
    ),
    ("vllm", stops_at_commas, (), ["end tokens"]),
    ("vllm", runs_on, (), ["end tokens"]),
    ("vllm", penalises, ("--dtype", "float16"), ["penalty", "precision"]),
    ("vllm", with_other_weights, (), ["weights"]),
    ("sglang", as_it_is, CUT, ["context"]),
    ("sglang", penalises, (), ["penalty"]),
    ("sglang", stops_at_commas, (), ["end tokens"]),
]


@pytest.mark.parametrize(
    ("engine", "change", "more", "wanted"),
    FAULTS,
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_fault_is_named_and_no_other(
    engine: str,
    change: Any,
    more: tuple[str, ...],
    wanted: list[str],
    folder_of: Any,
    hf_of: Callable[[str], pg.Route],
    tmp_path: Path,
) -> None:
    folder = folder_of("embedded")
    other = change(folder, tmp_path / "other")
    by_ids = launch.BY_IDS if engine == "vllm" else ()
    with launch.server(engine, other, "served", *by_ids, *more) as url:
        found = pg.verify(url, folder, prompts(), reference=hf_of("embedded"), precision="float32")
        alone = pg.verify(
            url, folder, prompts(), reference=hf_of("embedded"), precision="float32", chat_only=True
        )
    assert [fault.kind for fault in found.faults] == wanted
    assert all(fault.example for fault in found.faults)
    # with another prompt, or after a penalty, log probabilities tell nothing of the precision
    assert [fault.kind for fault in alone.faults] == wanted[:1]
