"""In the place of `renderers.client`: the same call and the same results, on vLLM and on SGLang.

    from pipegen.contrib.renderers import SGLangBackend, generate

    result = await generate(client=client, renderer=renderer, messages=messages, model=model)  # vLLM
    result = await generate(client=client, renderer=renderer, messages=messages, model=model, backend=SGLangBackend())

`renderers` 0.1.12 (the extra `renderers`) is what it was made beside; nothing here is imported from it but its errors, which the errors here
are kinds of.
"""

from pipegen.contrib.renderers.backend import Completion, Generated, KeywordBackend, RendererBackend, TokenPrompt
from pipegen.contrib.renderers.client import generate
from pipegen.contrib.renderers.refusals import MalformedGenerateResponseError, PromptTooLongError
from pipegen.contrib.renderers.sglang import SGLangBackend
from pipegen.contrib.renderers.stages import parse_with, render_with
from pipegen.contrib.renderers.vllm import VLLMBackend

__all__ = [
    "Completion",
    "Generated",
    "KeywordBackend",
    "MalformedGenerateResponseError",
    "PromptTooLongError",
    "RendererBackend",
    "SGLangBackend",
    "TokenPrompt",
    "VLLMBackend",
    "generate",
    "parse_with",
    "render_with",
]
