"""pipegen: render once, run on any engine, get the same text back, and never lose a request.

Importing this package loads no torch, transformers, vllm or PIL.
"""

from pipegen import backends, plugins
from pipegen.capabilities import ENGINES, Capabilities
from pipegen.drive import aimap, arun, imap, request_from, run
from pipegen.engine import GenerationEngine
from pipegen.errors import (
    BackendFailed,
    BadImage,
    CallFailed,
    ContractError,
    GenerationError,
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
from pipegen.messages import ImagePart, ImageSource, Message, TextPart
from pipegen.options import ChatTemplateOptions, DecodeOptions, GenerationOptions, StopOptions, VlmPreprocessOptions
from pipegen.pipe import Pipe, call, each, fallback, identity, pure
from pipegen.plugins.plugin import Plugin
from pipegen.records import Finish, GenerationResult, ModelLoadConfig, TokenLogprob
from pipegen.requests import GenerationRequest, ImagePolicy, TextGenerationRequest, VlmGenerationRequest
from pipegen.route import Route, attach, count_tokens, route
from pipegen.samples import grid, samples
from pipegen.slots import Batch, Slot, is_ok
from pipegen.stages.stop import cut
from pipegen.stream import Delta, Done, astream, stream

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
    "Finish",
    "GenerationEngine",
    "GenerationError",
    "GenerationOptions",
    "GenerationRequest",
    "GenerationResult",
    "ImagePart",
    "ImagePolicy",
    "ImageSource",
    "InvalidField",
    "InvalidRequest",
    "MalformedResponse",
    "Message",
    "ModelLoadConfig",
    "Pipe",
    "Plugin",
    "PluginFailed",
    "PromptTooLong",
    "RateLimited",
    "Route",
    "Slot",
    "StageFailed",
    "StopOptions",
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
    "arun",
    "astream",
    "attach",
    "backends",
    "call",
    "count_tokens",
    "cut",
    "each",
    "fallback",
    "grid",
    "identity",
    "imap",
    "is_ok",
    "plugins",
    "pure",
    "request_from",
    "route",
    "run",
    "samples",
    "stream",
]
