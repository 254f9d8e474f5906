"""Faults of servers, each with the names that `pipegen verify` may give it: what is changed in a
request, in an answer, in a stream, or in the model.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.wrong_server import Asked, Fault, Row

from pipegen import embedded

__all__ = ["FAULTS", "MODELS", "write_other"]


def asking(**options: Any) -> Callable[[Asked], Asked]:
    """Set options, whatever was asked."""
    return lambda asked: dataclasses.replace(asked, options={**asked.options, **options})


def moved(tokens: int) -> Callable[[Asked], Asked]:
    return lambda asked: dataclasses.replace(
        asked, options={**asked.options, "max_new_tokens": asked.options["max_new_tokens"] + tokens}
    )


def cut_at(tokens: int) -> Callable[[Asked], Asked]:
    return lambda asked: dataclasses.replace(
        asked,
        options={**asked.options, "max_new_tokens": min(tokens, asked.options["max_new_tokens"])},
    )


def without(*names: str) -> Callable[[Asked], Asked]:
    return lambda asked: dataclasses.replace(
        asked, options={name: value for name, value in asked.options.items() if name not in names}
    )


def drawn(**options: Any) -> Callable[[Asked], Asked]:
    """Set options of what is drawn alone."""
    return lambda asked: asking(**options)(asked) if asked.options.get("temperature") else asked


def ids(change: Callable[[list[int]], list[int]]) -> Callable[[Asked], Asked]:
    return lambda asked: (
        asked if asked.prompt is None else dataclasses.replace(asked, prompt=change(asked.prompt))
    )


def silent(row: Row, asked: Asked, tokenizer: Any) -> Row:
    """The ids of a prompt as they were sent are what the server names and counts."""
    if not asked.sent:
        return row
    counts = {**row.usage, "prompt_tokens": len(asked.sent)}
    return dataclasses.replace(row, prompt_ids=asked.sent, usage=counts)


def unnamed(row: Row, asked: Asked, tokenizer: Any) -> Row:
    """The server counts the prompt that it ran, and does not name it."""
    return dataclasses.replace(row, prompt_ids=[])


def messages(change: Callable[[list[Any]], list[Any]]) -> Callable[[Asked], Asked]:
    return lambda asked: (
        asked
        if asked.messages is None
        else dataclasses.replace(asked, messages=change(asked.messages))
    )


def last_characters(count: int) -> Callable[[list[Any]], list[Any]]:
    def change(turns: list[Any]) -> list[Any]:
        return [
            {
                **turn,
                "content": (
                    turn["content"][-count:]
                    if isinstance(turn["content"], str)
                    else turn["content"]
                ),
            }
            for turn in turns
        ]

    return change


def parts(change: Callable[[Any], Any]) -> Callable[[Asked], Asked]:
    """Change the parts of content that are images; None takes one out."""

    def turn(one: Any) -> Any:
        if not isinstance(one["content"], list):
            return one
        kept = [change(part) if part["type"] == "image_url" else part for part in one["content"]]
        return {**one, "content": [part for part in kept if part is not None]}

    return messages(lambda turns: [turn(one) for one in turns])


def pixels(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(part: Any) -> Any:
        from PIL import Image

        data = base64.b64decode(part["image_url"]["url"].partition(",")[2])
        out = io.BytesIO()
        change(Image.open(io.BytesIO(data)).convert("RGB")).save(out, "PNG")
        return {
            **part,
            "image_url": {
                "url": "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
            },
        }

    return changed


def swapped_channels(image: Any) -> Any:
    from PIL import Image

    return Image.merge("RGB", image.split()[::-1])


def text(change: Callable[[str], str]) -> Callable[..., Row]:
    return lambda row, asked, tokenizer: dataclasses.replace(row, text=change(row.text))


def field(**values: Any) -> Callable[..., Row]:
    return lambda row, asked, tokenizer: dataclasses.replace(row, **values)


def usage(**more: int) -> Callable[..., Row]:
    return lambda row, asked, tokenizer: dataclasses.replace(
        row, usage={name: count + more.get(name, 0) for name, count in row.usage.items()}
    )


def special_left(row: Row, asked: Asked, tokenizer: Any) -> Row:
    return dataclasses.replace(row, text=tokenizer.decode(row.ids))


def logprobs(change: Callable[[list[float]], list[float]]) -> Callable[..., Row]:
    def changed(row: Row, asked: Asked, tokenizer: Any) -> Row:
        values = change([value for _, value, _ in row.logprobs])
        return dataclasses.replace(
            row,
            logprobs=[
                (one, value, top) for (one, _, top), value in zip(row.logprobs, values, strict=True)
            ],
        )

    return changed


def warmer(row: Row, asked: Asked, tokenizer: Any) -> Row:
    """Log probabilities at temperature 2, as far as the likeliest tokens tell."""

    def at(value: float, top: list[tuple[int, float]]) -> float:
        return value / 2 - math.log(math.fsum(math.exp(other / 2) for _, other in top))

    return dataclasses.replace(
        row,
        logprobs=[
            (one, at(value, top), [(token, at(other, top)) for token, other in top])
            for one, value, top in row.logprobs
        ],
    )


def penalised(penalty: float) -> Callable[..., Row]:
    """Log probabilities that are told after a repetition penalty was taken, as SGLang does."""
    most = 8.0  # so large the likeliest logit is taken to be

    def after(own: float) -> float:
        logit = own + most
        return (logit / penalty if logit > 0 else logit * penalty) - most

    def changed(row: Row, asked: Asked, tokenizer: Any) -> Row:
        before, told = {*row.prompt_ids}, []
        for token, value, top in row.logprobs:
            values = {
                one: after(own) if one in before else own for one, own in (*top, (token, value))
            }
            whole = math.log(math.fsum(map(math.exp, values.values())))
            told.append(
                (token, values[token] - whole, [(one, values[one] - whole) for one, _ in top])
            )
            before.add(token)
        return dataclasses.replace(row, logprobs=told)

    return changed


def of_wrong_tokens(row: Row, asked: Asked, tokenizer: Any) -> Row:
    return dataclasses.replace(
        row, logprobs=[(one + 1, value, top) for one, value, top in row.logprobs]
    )


def pairs_swapped(rows: list[Row]) -> list[Row]:
    return [rows[place ^ 1] if place ^ 1 < len(rows) else rows[place] for place in range(len(rows))]


def cut_text(tokens: int, finish: str) -> Callable[..., Row]:
    def change(row: Row, asked: Asked, tokenizer: Any) -> Row:
        if len(row.ids) <= tokens:
            return row
        kept, special = row.ids[:tokens], frozenset(tokenizer.special_tokens.values())
        words = tokenizer.decode([one for one in kept if one not in special]).rstrip("\ufffd")
        counts = {**row.usage, "completion_tokens": tokens}
        return dataclasses.replace(
            row, ids=kept, logprobs=row.logprobs[:tokens], text=words, finish=finish, usage=counts
        )

    return change


def with_stop(row: Row, asked: Asked, tokenizer: Any) -> Row:
    return dataclasses.replace(row, text=row.text + (asked.options.get("stop") or [""])[0])


def dropped(place: int) -> Callable[[list[Any]], list[Any]]:
    return lambda events: (
        events[:place] + events[place + 1 :] if len(events) > place + 2 else events
    )


def repeated(events: list[Any]) -> list[Any]:
    return [events[0], *events] if len(events) > 2 else events


def turned(events: list[Any]) -> list[Any]:
    return [events[1], events[0], *events[2:]] if len(events) > 3 else events


def seeded(asked: Asked) -> Asked:
    """A seed of the server's own, where none is asked."""
    return dataclasses.replace(asked, options={"seed": 7, **asked.options})


COMPUTED = ("precision", "weights", "unknown")
FAULTS = [
    Fault("cut at 8 tokens", ("length",), ask=cut_at(8)),
    Fault("cut at 8 tokens by chat", ("length",), ask=cut_at(8), ways=("chat",)),
    Fault(
        "cut at 6 tokens, which end by themselves",
        ("length", "end tokens"),
        row=cut_text(6, "stop"),
        ways=("chat",),
    ),
    Fault("one token less", ("length",), ask=moved(-1)),
    Fault("one token more", ("length",), ask=moved(1)),
    Fault("upper case", ("text",), row=text(str.upper)),
    Fault("lower case", ("text",), row=text(str.lower)),
    Fault("typographic", ("text",), row=text(lambda words: words.replace("e", "e\u200b"))),
    Fault("HTML escapes", ("text",), row=text(lambda words: words.replace(",", "&#44;"))),
    Fault("without its first letter", ("text",), row=text(lambda words: words[1:])),
    Fault("without its last letter", ("text",), row=text(lambda words: words[:-1])),
    Fault("white space squeezed", ("text",), row=text(lambda words: " ".join(words.split()))),
    Fault("stripped", ("text",), row=text(str.strip), dialects=("vllm",)),
    Fault("with special tokens", ("text",), row=special_left),
    Fault("with a greeting", ("text",), row=text(lambda words: "Sure! " + words)),
    Fault("finish always length", ("length",), row=field(finish="length")),
    Fault("finish always stop", ("length",), row=field(finish="stop"), ways=("chat",)),
    Fault("finish missing", ("failed",), row=field(finish=None), ways=("chat",)),
    Fault("more tokens counted", ("length",), row=usage(completion_tokens=7), dialects=("vllm",)),
    Fault(
        "more tokens of the prompt counted",
        ("template",),
        row=usage(prompt_tokens=3),
        dialects=("plain",),
    ),
    Fault("temperature 0.7", ("sampling",), ask=asking(temperature=0.7)),
    Fault(
        "temperature 0.7 with one seed",
        ("sampling", "unknown"),
        ask=asking(temperature=0.7, seed=3),
        dialects=("vllm",),
    ),
    Fault("temperature 1.0 by chat", ("sampling",), ask=asking(temperature=1.0), ways=("chat",)),
    Fault("temperature ignored", ("sampling",), ask=asking(temperature=0.0)),
    Fault("temperature 3 where 1 is asked", ("sampling",), ask=drawn(temperature=3.0)),
    Fault("the likeliest token alone", ("sampling",), ask=drawn(top_k=1)),
    Fault("seed ignored", ("sampling",), ask=without("seed"), dialects=("vllm",)),
    Fault("top_k ignored", ("sampling",), ask=without("top_k"), dialects=("vllm",)),
    Fault("top_p ignored", ("sampling",), ask=without("top_p")),
    Fault("always one seed", ("sampling",), ask=drawn(seed=7), dialects=("plain",)),
    Fault("one seed where none is asked", ("sampling",), ask=seeded),
    Fault("n is ignored", ("length",), choices=lambda rows: rows[:1]),
    Fault("all choices are equal", ("sampling",), choices=lambda rows: rows[:1] * len(rows)),
    Fault(
        "ids cut on the left",
        ("context",),
        ask=ids(lambda one: one[-256:]),
        row=silent,
        dialects=("vllm",),
    ),
    Fault(
        "ids cut on the right",
        ("context",),
        ask=ids(lambda one: one[:256]),
        row=silent,
        dialects=("vllm",),
    ),
    Fault(
        "ids cut, and counted as they were run",
        ("context", "failed"),
        ask=ids(lambda one: one[-256:]),
        row=unnamed,
        dialects=("vllm",),
    ),
    Fault(
        "all ids cut on the left",
        ("context",),
        ask=ids(lambda one: one[-8:]),
        row=silent,
        dialects=("vllm",),
    ),
    Fault(
        "first id twice",
        ("template",),
        ask=ids(lambda one: [one[0], *one]),
        row=silent,
        dialects=("vllm",),
    ),
    Fault("messages cut", ("context",), ask=messages(last_characters(300))),
    Fault(
        "without system",
        ("template",),
        ask=messages(lambda turns: [turn for turn in turns if turn["role"] != "system"]),
    ),
    Fault(
        "with a system prompt",
        ("template",),
        ask=messages(lambda turns: [{"role": "system", "content": "Be brief."}, *turns]),
    ),
    Fault(
        "thinking on",
        ("template",),
        ask=asking(enable_thinking=True),
        ways=("chat",),
        dialects=("vllm",),
    ),
    Fault("repetition penalty", ("penalty",), ask=asking(repetition_penalty=1.4), ways=("chat",)),
    Fault(
        "repetition penalty everywhere",
        ("penalty",),
        ask=asking(repetition_penalty=1.4),
        dialects=("vllm",),
    ),
    Fault(
        "small penalty in its log probabilities",
        ("penalty",),
        ask=asking(repetition_penalty=1.1),
        row=penalised(1.1),
        ways=("chat",),
        dialects=("vllm",),
    ),
    Fault(
        "frequency penalty", ("penalty",), ask=asking(frequency_penalty=2.0), dialects=("plain",)
    ),
    Fault(
        "logprobs one on",
        ("logprobs",),
        row=logprobs(lambda values: [*values[1:], 0.0]),
        dialects=("vllm",),
    ),
    Fault(
        "logprobs one back",
        ("logprobs",),
        row=logprobs(lambda values: [0.0, *values[:-1]]),
        dialects=("vllm",),
    ),
    Fault(
        "logprobs to base 2",
        ("logprobs",),
        row=logprobs(lambda values: [value / math.log(2) for value in values]),
        dialects=("vllm",),
    ),
    Fault(
        "logprobs are probabilities",
        ("logprobs",),
        row=logprobs(lambda values: [math.exp(value) for value in values]),
        dialects=("vllm",),
    ),
    Fault("logprobs at temperature 2", ("logprobs", "unknown"), row=warmer, dialects=("vllm",)),
    Fault("logprobs of wrong tokens", ("logprobs",), row=of_wrong_tokens, dialects=("vllm",)),
    Fault(
        "logprobs are 0",
        ("logprobs",),
        row=logprobs(lambda values: [0.0] * len(values)),
        dialects=("vllm",),
    ),
    Fault("answers of two swapped", ("order",), batch=pairs_swapped),
    Fault(
        "answers of two swapped by ids",
        ("order",),
        batch=pairs_swapped,
        row=silent,
        ways=("ids",),
        dialects=("vllm",),
    ),
    Fault(
        "answers of two swapped by ids, with their prompts",
        ("failed",),
        batch=pairs_swapped,
        ways=("ids",),
        dialects=("vllm",),
    ),
    Fault("batch reversed", ("order",), batch=lambda rows: rows[::-1]),
    Fault("images left out", ("images",), ask=parts(lambda part: None)),
    Fault(
        "images of half size",
        ("images",),
        ask=parts(pixels(lambda image: image.resize((image.width // 2, image.height // 2)))),
    ),
    Fault("colours swapped", ("images",), ask=parts(pixels(swapped_channels))),
    Fault("another normalisation", ("images",), model="normalised", dialects=("vllm",)),
    Fault("end tokens ignored", ("end tokens",), ask=asking(ignore_eos=True), ways=("chat",)),
    Fault("ends at commas", ("end tokens",), ask=asking(stop_token_ids=[11]), ways=("chat",)),
    Fault("stops ignored", ("length",), ask=without("stop"), dialects=("vllm",)),
    Fault("stop left in the text", (), row=with_stop),
    Fault("stream without a piece", ("text", "length"), events=dropped(1)),
    Fault("stream without its first piece", ("text", "length"), events=dropped(0)),
    Fault("stream with a piece twice", ("text", "length"), events=repeated),
    Fault("stream in another order", ("text", "length"), events=turned),
    Fault("nothing but spaces", ("text",), row=text(lambda words: " ")),
    Fault("large noise", ("weights",), model="noise 0.5"),
    Fault("noise", COMPUTED, model="noise 0.1"),
    Fault("int8", ("unknown", "precision"), model="int8", dialects=("vllm",)),
    Fault("fp8", ("unknown", "precision"), model="fp8"),
    Fault(
        "fp8 at bfloat16",
        ("unknown", "precision"),
        model="fp8",
        precision="bfloat16",
        dialects=("vllm",),
    ),
    Fault("int4", ("unknown", "precision"), model="int4", precision="bfloat16"),
    Fault("bfloat16", ("precision",), model="bfloat16", dialects=("vllm",)),
    Fault("float16", ("precision",), model="float16", dialects=("vllm",)),
    Fault(
        "small adapter",
        ("weights", "unknown"),
        model="adapter 0.05",
        precision="bfloat16",
        dialects=("vllm",),
    ),
    Fault("adapter", ("weights", "unknown"), model="adapter 0.3", precision="bfloat16"),
]
"""The faults; where no kind is named, no answer that comes through pipegen is another one."""


def _rounded(steps: int) -> Callable[[str, Any], Any]:
    def change(name: str, value: Any) -> Any:
        scale = value.abs().amax(1, keepdim=True) / steps
        return (value / scale).round() * scale

    return change


def _fp8(name: str, value: Any) -> Any:
    import torch

    scale = value.abs().amax() / 448
    return (value / scale).to(torch.float8_e4m3fn).float() * scale


def _noise(size: float) -> Callable[[str, Any], Any]:
    def change(name: str, value: Any) -> Any:
        import torch

        return value + size * value.std() * torch.randn(value.shape)

    return change


def _adapter(size: float) -> Callable[[str, Any], Any]:
    def change(name: str, value: Any) -> Any:
        import torch

        if "proj" not in name:
            return value
        product = torch.randn(value.shape[0], 4) @ torch.randn(4, value.shape[1])
        return value + size * value.std() * product / product.std()

    return change


WEIGHTS: dict[str, Callable[[str, Any], Any]] = {
    "int8": _rounded(127),
    "int4": _rounded(7),
    "fp8": _fp8,
    "noise 0.1": _noise(0.1),
    "noise 0.5": _noise(0.5),
    "adapter 0.05": _adapter(0.05),
    "adapter 0.3": _adapter(0.3),
}
MODELS: dict[str, tuple[str, str]] = {
    **{name: (name, "float32") for name in (*WEIGHTS, "normalised")},
    "bfloat16": ("", "bfloat16"),
    "float16": ("", "float16"),
}
"""Other models: the name of their weights, and their precision."""


def write_other(name: str, place: Path) -> str:
    """The folder of the embedded model with other weights, or another normalisation of images."""
    if not name:
        return str(embedded.path())
    shutil.copytree(embedded.path(), place)
    if name == "normalised":
        file = place / "preprocessor_config.json"
        file.write_text(
            json.dumps(
                json.loads(file.read_text())
                | {
                    "image_mean": [0.48, 0.46, 0.41],
                    "image_std": [0.27, 0.26, 0.28],
                }
            )
        )
        return str(place)
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    weights = {key: value.float() for key, value in load_file(place / "model.safetensors").items()}
    changed = {
        key: WEIGHTS[name](key, value) if value.ndim == 2 else value
        for key, value in weights.items()
    }
    save_file(
        {key: value.contiguous() for key, value in changed.items()},
        place / "model.safetensors",
        metadata={"format": "pt"},
    )
    return str(place)
