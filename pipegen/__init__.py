"""pipegen: render once, run on any engine, get the same text back, and never lose a request.

Importing this package loads no torch, transformers, vllm or PIL.
"""

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
from pipegen.requests import GenerationRequest, ImagePolicy, TextGenerationRequest, VlmGenerationRequest
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
