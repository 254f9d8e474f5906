"""A renderer of `renderers` as stages of a pipe, in place of the model's chat template.

rendered = pg.each("render", render_with(renderer)) >> route
parsed = rendered >> pg.each("parse", parse_with(renderer))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from returns.result import Failure, Success

from pipegen.core.errors import (
    InvalidRequest,
    TemplateFailed,
    UnsupportedMultimodal,
    UnsupportedOption,
)
from pipegen.core.slots import Slot
from pipegen.records.frozen import thaw
from pipegen.records.messages import plain_messages
from pipegen.records.option_groups import ChatTemplateOptions, StopOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.requests import GenerationRequest, TextGenerationRequest
from pipegen.records.results import GenerationResult


def render_with(renderer: Any) -> Callable[[GenerationRequest], Slot[GenerationRequest]]:
    """A stage that renders a request's messages to token ids and adds the renderer's stop tokens;
    requests without messages are not changed.

    Chat template options that the renderer sets are `UnsupportedOption`; images are
    `UnsupportedMultimodal`; `turns` and a continuation are `InvalidRequest`; a `ValueError` of the
    renderer is `TemplateFailed`.
    """

    def rendered(request: GenerationRequest) -> Slot[GenerationRequest]:
        if request.messages is None:
            return Success(request)
        if request.sources:
            return Failure(
                UnsupportedMultimodal(
                    "a renderer gives token ids without images here",
                    hint="send it to the route without the renderer",
                )
            )
        for name in ("turns", "continuation"):
            if getattr(request, name, None):
                return Failure(
                    InvalidRequest(
                        f"a renderer gives the ids of one prompt, and the request has {name} too",
                        hint="send it to the route without the renderer, or ask for each answer"
                        " by a request of its own",
                    )
                )
        options = request.options or GenerationOptions()
        chat = options.chat or ChatTemplateOptions()
        option = next(
            (
                f.name
                for f in dataclasses.fields(chat)
                if f.name != "add_generation_prompt" and getattr(chat, f.name) is not None
            ),
            None,
        )
        if option is not None:
            return Failure(
                UnsupportedOption(
                    f"{type(renderer).__name__} sets {option} itself",
                    option=option,
                    hint="make the renderer with that setting",
                )
            )
        opens = chat.add_generation_prompt is not False
        try:
            prompt = renderer.render(
                plain_messages(request.messages),
                tools=[thaw(tool) for tool in request.tools] or None,
                add_generation_prompt=opens,
            )
        except ValueError as refusal:
            return Failure(TemplateFailed(f"{type(renderer).__name__}: {refusal}"))
        stops = options.stop or StopOptions()
        ending = tuple(
            dict.fromkeys((*(stops.stop_token_ids or ()), *renderer.get_stop_token_ids()))
        )
        options = dataclasses.replace(
            options, chat=None, stop=dataclasses.replace(stops, stop_token_ids=ending)
        )
        return Success(
            TextGenerationRequest(
                id=request.id,
                prompt_token_ids=tuple(prompt.token_ids),
                options=options,
                metadata=request.metadata,
            )
        )

    return rendered


def parse_with(renderer: Any) -> Callable[[GenerationResult], Slot[Any]]:
    """A stage that returns the renderer's parsed response (content, reasoning, tool calls)."""

    def parsed(result: GenerationResult) -> Slot[Any]:
        return Success(
            renderer.parse_response(
                list(result.token_ids), prompt_ids=list(result.prompt_token_ids)
            )
        )

    return parsed
