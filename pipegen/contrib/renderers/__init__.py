"""A replacement for `renderers.client`: the same call and results, on vLLM and SGLang.

    from pipegen.contrib.renderers import SGLangBackend, generate

    result = await generate(client=client, renderer=renderer, messages=messages, model=model)  # vLLM
    result = await generate(client=client, renderer=renderer, messages=messages, model=model,
        backend=SGLangBackend())

Made for `renderers` 0.1.12 (the extra `renderers`). Only its errors are imported, as the base
classes of the errors here.
"""

from pipegen.contrib.renderers.renderer_answers import (
    MalformedGenerateResponseError,
    PromptTooLongError,
)
from pipegen.contrib.renderers.renderer_client import generate
from pipegen.contrib.renderers.renderer_engine import (
    Completion,
    Generated,
    KeywordBackend,
    RendererBackend,
    TokenPrompt,
)
from pipegen.contrib.renderers.renderer_sglang import SGLangBackend
from pipegen.contrib.renderers.renderer_vllm import VLLMBackend
from pipegen.contrib.renderers.stages import parse_with, render_with

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
