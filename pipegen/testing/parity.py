"""Compare two routes over one checkpoint: seeded requests of every kind, and a summary of where the
results differ.

    requests = mixed_requests("my engine", 60)
    line, equal = report(requests, run(safe, requests), run(mine, requests))

Needs Pillow, for the images.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from pipegen.core.slots import Slot, live
from pipegen.records.option_groups import DecodeOptions, StopOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.requests import GenerationRequest, TextGenerationRequest, VlmGenerationRequest
from pipegen.records.results import GenerationResult
from pipegen.report.diff import Compared, compare, summary
from pipegen.testing.image_files import image_file

__all__ = ["SIZES", "chat_requests", "mixed_requests", "report"]

SIZES = ((64, 64), (48, 32), (100, 70), (33, 130), (160, 96))
"""Width and height of the images."""
_PLAIN = (
    "List",
    "the",
    "months",
    "Count from 1 to 12.",
    "Привет, мир",
    "日本語のテキスト",
    "שלום",
    "🎈🎉",
    "é à ü",
    "x = {1: [2]}",
)
_HOSTILE = ("\n\n", "<think>", "[INST]", "<|im_end|>")
_WORDS = (*_PLAIN[:9], _HOSTILE[0], _PLAIN[9], *_HOSTILE[1:])
_STOPS = (
    ",",
    ", ",
    "\n",
    "e",
    "a",
    "an",
    "the",
    "3",
    "Mar",
    "ch, A",
    "|",
    "🎈",
    "<|im_end|>",
    "</s>",
    " ",
)


def mixed_requests(seed: str, count: int, *, images: bool = False) -> list[GenerationRequest]:
    """Greedy requests: text, one and two images, stops of every kind, penalties, look-alikes of
    control tokens, many scripts and lengths.

    >>> [type(request).__name__ for request in mixed_requests("a", 2)]
    ['TextGenerationRequest', 'TextGenerationRequest']
    """
    draw = random.Random(seed)  # noqa: S311  # for tests
    requests: list[GenerationRequest] = []
    for index in range(count):
        text = " ".join(draw.choices(_WORDS, k=draw.choice((1, 2, 5, 20))))
        options = GenerationOptions(
            max_new_tokens=draw.choice((1, 2, 7, 24, 40)),
            min_new_tokens=draw.choice((0, 0, 0, 1)),
            repetition_penalty=draw.choice((1.0, 1.0, 1.0, 1.3)),
            presence_penalty=draw.choice((0.0, 0.0, 0.0, 0.5)),
            frequency_penalty=draw.choice((0.0, 0.0, 0.0, 0.5)),
            stop=StopOptions(
                stop=tuple(draw.sample(_STOPS, k=draw.choice((0, 0, 1, 3)))),
                stop_token_ids=tuple(draw.sample(range(300), k=draw.choice((0, 0, 0, 20)))),
                ignore_eos=draw.random() < 0.5,
            ),
            decode=DecodeOptions(
                skip_special_tokens=draw.random() < 0.7, strip_whitespace=draw.random() < 0.3
            ),
        )
        how_many = draw.choice((0, 1, 2)) if images else 0
        if index % 7 == 6:
            requests.append(TextGenerationRequest(id=str(index), prompt=text, options=options))
        else:
            requests.append(_request(str(index), text, how_many, options, draw))
    return requests


def chat_requests(
    seed: str, count: int, options: GenerationOptions, *, images: bool = False
) -> list[GenerationRequest]:
    """Conversations without look-alikes of control tokens, each with these options and its own
    length; also for servers that render.
    """
    draw = random.Random(seed)  # noqa: S311  # for tests
    requests: list[GenerationRequest] = []
    for index in range(count):
        text = " ".join(draw.choices(_PLAIN, k=draw.choice((1, 2, 5, 20))))
        row_options = dataclasses.replace(options, max_new_tokens=draw.choice((1, 2, 7, 24, 40)))
        requests.append(
            _request(str(index), text, draw.choice((0, 1, 2)) if images else 0, row_options, draw)
        )
    return requests


def _request(
    name: str, text: str, images: int, options: GenerationOptions, draw: random.Random
) -> GenerationRequest:
    parts: list[dict[str, object]] = [{"type": "text", "text": text}]
    for _ in range(images):
        width, height = draw.choice(SIZES)
        parts.insert(
            draw.randrange(len(parts) + 1),
            {"type": "image", "image": image_file(width=width, height=height)},
        )
    kind = VlmGenerationRequest if images else TextGenerationRequest
    return kind(
        id=name, messages=[{"role": "user", "content": parts if images else text}], options=options
    )


def report(
    requests: Sequence[GenerationRequest],
    wanted: Sequence[Slot[GenerationResult]],
    found: Sequence[Slot[GenerationResult]],
) -> tuple[dict[str, int], list[Compared], str]:
    """The counts of `pipegen.report.diff.summary`, the results that differ, and how the wanted ones
    ended.
    """
    ids = [str(request.id) for request in requests]
    compared = list(
        compare(dict(zip(ids, wanted, strict=True)), dict(zip(ids, found, strict=True)))
    )
    finishes = sorted({result.finish.value for result in live(wanted)})
    failed = len(wanted) - len(live(wanted))
    line = f"finishes: {', '.join(finishes)}" + (f"; failed on both: {failed}" if failed else "")
    return summary(compared), [row for row in compared if row.difference is not None], line
