"""Conformance check: an engine refuses by name what it does not honour."""

from __future__ import annotations

from collections.abc import Mapping

from pipegen.drivers.route import Route
from pipegen.records.options import ChatTemplateOptions, GenerationOptions, StopOptions, StructuredOptions, VlmPreprocessOptions
from pipegen.testing.ask import honours, refuses

__all__ = ["NOT_NEUTRAL", "what_is_not_honoured_is_refused"]

NOT_NEUTRAL: Mapping[str, GenerationOptions] = {
    "min_new_tokens": GenerationOptions(min_new_tokens=2),
    "temperature": GenerationOptions(temperature=1.0),
    "top_p": GenerationOptions(top_p=0.5),
    "top_k": GenerationOptions(top_k=2),
    "min_p": GenerationOptions(min_p=0.5),
    "repetition_penalty": GenerationOptions(repetition_penalty=1.5),
    "presence_penalty": GenerationOptions(presence_penalty=1.5),
    "frequency_penalty": GenerationOptions(frequency_penalty=1.5),
    "no_repeat_ngram_size": GenerationOptions(no_repeat_ngram_size=2),
    "seed": GenerationOptions(seed=3),
    "logprobs": GenerationOptions(logprobs=True),
    "stop_token_ids": GenerationOptions(stop=StopOptions(stop_token_ids=(5,))),
    "ignore_eos": GenerationOptions(stop=StopOptions(ignore_eos=True)),
    "add_generation_prompt": GenerationOptions(chat=ChatTemplateOptions(add_generation_prompt=False)),
    "enable_thinking": GenerationOptions(chat=ChatTemplateOptions(enable_thinking=True)),
    "control_tokens": GenerationOptions(chat=ChatTemplateOptions(control_tokens="allow")),
    "trust": GenerationOptions(chat=ChatTemplateOptions(trust=("assistant",))),
    "template": GenerationOptions(chat=ChatTemplateOptions(template="{{ messages }}")),
    "template_kwargs": GenerationOptions(chat=ChatTemplateOptions(template_kwargs={"x": 1})),
    "min_pixels": GenerationOptions(preprocess=VlmPreprocessOptions(min_pixels=4096)),
    "max_pixels": GenerationOptions(preprocess=VlmPreprocessOptions(max_pixels=8192)),
    "do_resize": GenerationOptions(preprocess=VlmPreprocessOptions(do_resize=False)),
    "json_schema": GenerationOptions(structured=StructuredOptions(json_schema={"enum": [1, 2]})),
    "regex": GenerationOptions(structured=StructuredOptions(regex="[ab]+")),
    "choice": GenerationOptions(structured=StructuredOptions(choice=("yes", "no"))),
}
"""A value of each option that an engine itself must honour or refuse."""


def what_is_not_honoured_is_refused(route: Route) -> None:
    """In its slot, by name."""
    for name, options in NOT_NEUTRAL.items():
        if not honours(route, name):
            refuses(route, options, name)
