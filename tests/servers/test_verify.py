"""`pg.verify` on real servers: nothing is wrong with a right one in 1,000 prompts and in what is
asked where no file is given; and each fault that is put in on purpose, in the server or by a proxy
before it, is named, and no other.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import launch
import pytest
from support.loopback import JsonHandler, Loopback

import pipegen as pg

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
    served: Any,
    hf_of: Callable[[str], pg.Route],
    record_property: Callable[[str, object], None],
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
    record_property(
        "table",
        f"| {served.engine} | {served.model} | verify | {found.answers} answers | spread"
        f" {found.spread:.1e} | margin {found.margin:.1e} |",
    )
    assert found.plain()["faults"] == []
    assert found.right
    assert (found.dialect, found.ways, found.answers) == (served.engine, ("chat", "ids"), 2000)


@pytest.mark.parametrize("served", ["vllm-embedded", "vllm-text", "sglang-embedded"], indirect=True)
def test_nothing_is_wrong_with_a_right_server_in_what_is_asked_without_a_file(
    served: Any, hf_of: Callable[[str], pg.Route]
) -> None:
    found = pg.verify(served.url, served.folder, reference=hf_of(served.model), api_key=served.key)
    assert found.plain()["faults"] == []
    assert found.right
    assert found.ways == ("chat", "ids")
    assert found.asked_again > 40


def each(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """Change each choice of an answer."""
    return lambda answer: [change(choice) for choice in answer.get("choices", ())]


def upper(choice: dict[str, Any]) -> None:
    holder, name = (choice["message"], "content") if "message" in choice else (choice, "text")
    holder[name] = holder[name] and holder[name].upper()


def alike(answer: dict[str, Any]) -> None:
    first, *others = answer.get("choices") or [{}]
    for choice in others:
        choice["message"] = first["message"]


def limited(body: dict[str, Any]) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name):
            body[name] = min(8, body[name])


PROXIES: dict[str, tuple[str, Any, Any]] = {
    "n is ignored": ("length", lambda body: body.pop("n", None), None),
    "all choices are equal": ("sampling", None, alike),
    "upper case": ("text", None, each(upper)),
    "cut at 8 tokens": ("length", limited, None),
    "temperature 0.7": ("sampling", lambda body: body.update(temperature=0.7), None),
}
"""What a proxy changes in a request by chat, or in its answer, and the name of the fault."""


@pytest.mark.parametrize("served", ["vllm-embedded", "sglang-embedded"], indirect=True)
@pytest.mark.parametrize("fault", PROXIES)
def test_each_fault_of_a_proxy_is_named_and_no_other(
    served: Any, fault: str, hf_of: Callable[[str], pg.Route]
) -> None:
    kind, ask, answer = PROXIES[fault]
    with proxy(served.url, ask, answer) as url:
        found = pg.verify(
            url,
            served.folder,
            reference=hf_of(served.model),
            dialect=served.engine,
            api_key=served.key,
            chat_only=True,
        )
    # SGLang tells log probabilities at the temperature: they look like those of other weights
    unknown = served.engine == "sglang" and fault == "temperature 0.7"
    kinds = [one.kind for one in found.faults]
    assert kinds == [kind] or (unknown and kinds == ["unknown"]), found.plain()["faults"]


@contextlib.contextmanager
def proxy(url: str, ask: Any, answer: Any) -> Iterator[str]:
    """The address of a server that sends on to another one, and changes what goes by chat."""

    class Handler(JsonHandler):
        def do_GET(self) -> None:
            self.send_on(None)

        def do_POST(self) -> None:
            body = self.body()
            if ask is not None and self.path.endswith("/chat/completions"):
                ask(body)
            self.send_on(body)

        def send_on(self, body: Any) -> None:
            key = (self.headers["Authorization"] or "").removeprefix("Bearer ")
            status, kind, text = launch.ask(url + self.path, body, key=key)
            if answer is not None and "/chat/" in self.path and kind == "application/json":
                values = json.loads(text)
                answer(values)
                text = json.dumps(values)
            self.send(text.encode(), status, {"Content-Type": kind})

    with Loopback(Handler) as server:
        yield server.url


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
        found, alone = (
            pg.verify(
                url, folder, reference=hf_of("embedded"), precision="float32", chat_only=chat_only
            )
            for chat_only in (False, True)
        )
    assert [fault.kind for fault in found.faults] == wanted
    assert all(fault.example for fault in found.faults)
    # with another prompt, or after a penalty, log probabilities tell nothing of the precision
    assert [fault.kind for fault in alone.faults] == wanted[:1]
