"""pipegen: render once, run on any engine, get the same text back, and never lose a request.

Importing this package loads no torch, transformers, vllm or PIL. It loads next to nothing: a public name is imported when it is first used.
"""

import sys
import types
import typing

if typing.TYPE_CHECKING:
    __version__: str
    from returns.result import Failure, Success

    from pipegen import backends, plugins, strict_json
    from pipegen.capabilities import ENGINES, Capabilities
    from pipegen.drive import arun, request_from, run
    from pipegen.engine import GenerationEngine
    from pipegen.errors import (
        BackendFailed,
        BadImage,
        CallFailed,
        ContractError,
        GenerationError,
        InternalError,
        InvalidRequest,
        MalformedResponse,
        PluginFailed,
        PromptTooLong,
        RateLimited,
        StageFailed,
        TemplateFailed,
        Timeout,
        UnsupportedMultimodal,
        UnsupportedOption,
        UnsupportedPlugin,
    )
    from pipegen.fields import InvalidField, UnknownField
    from pipegen.folders import pictures_in
    from pipegen.io import error_to_plain, from_plain, to_plain
    from pipegen.messages import ImagePart, ImageSource, Message, TextPart
    from pipegen.options import ChatTemplateOptions, DecodeOptions, GenerationOptions, StopOptions, StructuredOptions, VlmPreprocessOptions
    from pipegen.pipe import Pipe, call, each, fallback, identity, pure
    from pipegen.plugins.plugin import Plugin
    from pipegen.records import Finish, GenerationResult, ModelLoadConfig, TokenLogprob
    from pipegen.requests import GenerationRequest, ImagePolicy, RequestPolicy, TextGenerationRequest, VlmGenerationRequest
    from pipegen.route import Route, attach, count_tokens, route
    from pipegen.samples import grid, samples
    from pipegen.slots import Batch, Slot, is_ok
    from pipegen.stages.stop import cut
    from pipegen.stream import Delta, Done, astream, stream
    from pipegen.watched import Progress, watched
    from pipegen.windows import aimap, aimap_keyed, imap, imap_keyed

__all__ = [
    "BackendFailed",
    "BadImage",
    "Batch",
    "CallFailed",
    "Capabilities",
    "ChatTemplateOptions",
    "ContractError",
    "DecodeOptions",
    "Delta",
    "Done",
    "ENGINES",
    "Failure",
    "Finish",
    "GenerationEngine",
    "GenerationError",
    "GenerationOptions",
    "GenerationRequest",
    "GenerationResult",
    "ImagePart",
    "ImagePolicy",
    "ImageSource",
    "InternalError",
    "InvalidField",
    "InvalidRequest",
    "MalformedResponse",
    "Message",
    "ModelLoadConfig",
    "Pipe",
    "Plugin",
    "PluginFailed",
    "Progress",
    "PromptTooLong",
    "RateLimited",
    "RequestPolicy",
    "Route",
    "Slot",
    "StageFailed",
    "StopOptions",
    "StructuredOptions",
    "Success",
    "TemplateFailed",
    "TextGenerationRequest",
    "TextPart",
    "Timeout",
    "TokenLogprob",
    "UnknownField",
    "UnsupportedMultimodal",
    "UnsupportedOption",
    "UnsupportedPlugin",
    "VlmGenerationRequest",
    "VlmPreprocessOptions",
    "aimap",
    "aimap_keyed",
    "arun",
    "astream",
    "attach",
    "backends",
    "call",
    "count_tokens",
    "cut",
    "each",
    "error_to_plain",
    "fallback",
    "from_plain",
    "grid",
    "identity",
    "imap",
    "imap_keyed",
    "is_ok",
    "pictures_in",
    "plugins",
    "pure",
    "request_from",
    "route",
    "run",
    "samples",
    "stream",
    "strict_json",
    "to_plain",
    "watched",
]

_HOMES = {
    name: module
    for module, names in {
        "returns.result": "Failure Success",
        "pipegen.capabilities": "ENGINES Capabilities",
        "pipegen.drive": "arun request_from run",
        "pipegen.engine": "GenerationEngine",
        "pipegen.errors": (
            "BackendFailed BadImage CallFailed ContractError GenerationError InternalError InvalidRequest MalformedResponse PluginFailed "
            "PromptTooLong RateLimited StageFailed TemplateFailed Timeout UnsupportedMultimodal UnsupportedOption UnsupportedPlugin"
        ),
        "pipegen.fields": "InvalidField UnknownField",
        "pipegen.folders": "pictures_in",
        "pipegen.io": "error_to_plain from_plain to_plain",
        "pipegen.messages": "ImagePart ImageSource Message TextPart",
        "pipegen.options": "ChatTemplateOptions DecodeOptions GenerationOptions StopOptions StructuredOptions VlmPreprocessOptions",
        "pipegen.pipe": "Pipe call each fallback identity pure",
        "pipegen.plugins.plugin": "Plugin",
        "pipegen.records": "Finish GenerationResult ModelLoadConfig TokenLogprob",
        "pipegen.requests": "GenerationRequest ImagePolicy RequestPolicy TextGenerationRequest VlmGenerationRequest",
        "pipegen.route": "Route attach count_tokens route",
        "pipegen.samples": "grid samples",
        "pipegen.slots": "Batch Slot is_ok",
        "pipegen.stages.stop": "cut",
        "pipegen.stream": "Delta Done astream stream",
        "pipegen.watched": "Progress watched",
        "pipegen.windows": "aimap aimap_keyed imap imap_keyed",
    }.items()
    for name in names.split()
}
"""The module of each public name that is no module itself."""


class _Package(types.ModuleType):
    """Some functions have the name of the module that they stand in, such as `route`: importing that module must not put it in their place."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (isinstance(value, types.ModuleType) and name in _HOMES):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

if not typing.TYPE_CHECKING:  # type checkers see the imports above, and would take any name for one that is there

    def __getattr__(name: str) -> object:
        import importlib

        if name == "__version__":
            from pipegen.distribution import version

            value = globals()[name] = version()
            return value
        if name in _HOMES:
            value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
            return value
        if name in __all__:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__])

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
