"""pipegen: render once, run on any engine, get the same text back, and never lose a request.

Importing this package loads no torch, transformers, vllm or PIL. It loads next to nothing: a public
name is imported when it is first used.
"""

import sys
import typing

if typing.TYPE_CHECKING:
    __version__: str
    from returns.result import Failure, Success

    from pipegen import backends, plugins, stages
    from pipegen.backends import GenerationEngine
    from pipegen.contrib.mcp_tools import mcp
    from pipegen.core.errors import (
        BackendFailed,
        BadImage,
        BadVideo,
        CallFailed,
        ContractError,
        GenerationError,
        InternalError,
        InvalidRequest,
        MalformedResponse,
        PluginFailed,
        PromptTooLong,
        RateLimited,
        Refused,
        StageFailed,
        TemplateFailed,
        Timeout,
        UnsupportedMultimodal,
        UnsupportedOption,
        UnsupportedPlugin,
    )
    from pipegen.core.fallback import fallback
    from pipegen.core.names import InvalidField
    from pipegen.core.pipe import Pipe, each, pure
    from pipegen.core.slots import Batch, Slot, is_ok
    from pipegen.drivers.batch import arun, run
    from pipegen.drivers.mapping import aimap, aimap_keyed, imap, imap_keyed
    from pipegen.drivers.progress import Progress, watched
    from pipegen.drivers.repeat import repeat
    from pipegen.drivers.route import Route, attach, count_tokens, route
    from pipegen.drivers.samples import grid, samples
    from pipegen.drivers.scoring import choose, perplexity, score, scoring
    from pipegen.drivers.streaming import Delta, Done, astream, stream
    from pipegen.drivers.tools import tools
    from pipegen.drivers.turns import turns
    from pipegen.engines.capabilities import ENGINES, Capabilities
    from pipegen.engines.plugin import Plugin
    from pipegen.engines.settings import ModelLoadConfig
    from pipegen.io.forms import TableError
    from pipegen.io.jsonl import from_plain, to_plain
    from pipegen.io.tables import Table, read_table
    from pipegen.jobs import ray
    from pipegen.jobs.job_export import finished_rows
    from pipegen.jobs.new_file import JournalError
    from pipegen.jobs.runner import Job, job, job_keyed
    from pipegen.jobs.shards import shard, shard_keyed
    from pipegen.jobs.table_file import write_table
    from pipegen.media.folder import images_in
    from pipegen.records.codec import error_to_plain
    from pipegen.records.fields import UnknownField
    from pipegen.records.messages import (
        ImagePart,
        ImageSource,
        Message,
        TextPart,
        VideoPart,
        VideoSource,
    )
    from pipegen.records.option_groups import (
        ChatTemplateOptions,
        DecodeOptions,
        StopOptions,
        StructuredOptions,
        VlmPreprocessOptions,
    )
    from pipegen.records.option_records import GenerationOptions
    from pipegen.records.parse_request import request_from
    from pipegen.records.requests import (
        GenerationRequest,
        ImagePolicy,
        RequestPolicy,
        ScoringRequest,
        TextGenerationRequest,
        VlmGenerationRequest,
    )
    from pipegen.records.results import Finish, GenerationResult, TokenLogprob
    from pipegen.records.rollouts import Rollout
    from pipegen.records.scores import Chosen, Perplexity, Scored
    from pipegen.report.verdict import Verdict
    from pipegen.report.verify import verify
    from pipegen.stages.calling import call

__all__ = [
    "BackendFailed",
    "BadImage",
    "BadVideo",
    "Batch",
    "CallFailed",
    "Capabilities",
    "ChatTemplateOptions",
    "Chosen",
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
    "Job",
    "JournalError",
    "MalformedResponse",
    "Message",
    "ModelLoadConfig",
    "Perplexity",
    "Pipe",
    "Plugin",
    "PluginFailed",
    "Progress",
    "PromptTooLong",
    "RateLimited",
    "Refused",
    "RequestPolicy",
    "Rollout",
    "Route",
    "Scored",
    "ScoringRequest",
    "Slot",
    "StageFailed",
    "StopOptions",
    "StructuredOptions",
    "Success",
    "Table",
    "TableError",
    "TemplateFailed",
    "TextGenerationRequest",
    "TextPart",
    "Timeout",
    "TokenLogprob",
    "UnknownField",
    "UnsupportedMultimodal",
    "UnsupportedOption",
    "UnsupportedPlugin",
    "Verdict",
    "VideoPart",
    "VideoSource",
    "VlmGenerationRequest",
    "VlmPreprocessOptions",
    "aimap",
    "aimap_keyed",
    "arun",
    "astream",
    "attach",
    "backends",
    "call",
    "choose",
    "count_tokens",
    "each",
    "error_to_plain",
    "fallback",
    "finished_rows",
    "from_plain",
    "grid",
    "images_in",
    "imap",
    "imap_keyed",
    "is_ok",
    "job",
    "job_keyed",
    "mcp",
    "perplexity",
    "plugins",
    "pure",
    "ray",
    "read_table",
    "repeat",
    "request_from",
    "route",
    "run",
    "samples",
    "score",
    "scoring",
    "shard",
    "shard_keyed",
    "stages",
    "stream",
    "to_plain",
    "tools",
    "turns",
    "verify",
    "watched",
    "write_table",
]

_HOMES = {
    name: module
    for module, names in {
        "returns.result": "Failure Success",
        "pipegen.engines.capabilities": "ENGINES Capabilities",
        "pipegen.drivers.batch": "arun run",
        "pipegen.records.parse_request": "request_from",
        "pipegen.backends": "GenerationEngine",
        "pipegen.contrib.mcp_tools": "mcp",
        "pipegen.core.errors": (
            "BackendFailed BadImage BadVideo CallFailed ContractError GenerationError InternalError"
            " InvalidRequest MalformedResponse PluginFailed PromptTooLong RateLimited Refused StageFailed"
            " TemplateFailed Timeout UnsupportedMultimodal UnsupportedOption UnsupportedPlugin"
        ),
        "pipegen.core.names": "InvalidField",
        "pipegen.records.fields": "UnknownField",
        "pipegen.jobs.job_export": "finished_rows",
        "pipegen.jobs.new_file": "JournalError",
        "pipegen.jobs.runner": "Job job job_keyed",
        "pipegen.jobs.shards": "shard shard_keyed",
        "pipegen.jobs.table_file": "write_table",
        "pipegen.media.folder": "images_in",
        "pipegen.io.forms": "TableError",
        "pipegen.io.jsonl": "from_plain to_plain",
        "pipegen.records.codec": "error_to_plain",
        "pipegen.io.tables": "Table read_table",
        "pipegen.records.messages": "ImagePart ImageSource Message TextPart VideoPart VideoSource",
        "pipegen.records.option_records": "GenerationOptions",
        "pipegen.records.option_groups": (
            "ChatTemplateOptions DecodeOptions StopOptions StructuredOptions VlmPreprocessOptions"
        ),
        "pipegen.core.fallback": "fallback",
        "pipegen.core.pipe": "Pipe each pure",
        "pipegen.stages.calling": "call",
        "pipegen.engines.plugin": "Plugin",
        "pipegen.engines.settings": "ModelLoadConfig",
        "pipegen.records.results": "Finish GenerationResult TokenLogprob",
        "pipegen.records.rollouts": "Rollout",
        "pipegen.records.scores": "Chosen Perplexity Scored",
        "pipegen.report.verdict": "Verdict",
        "pipegen.report.verify": "verify",
        "pipegen.records.requests": (
            "GenerationRequest ImagePolicy RequestPolicy ScoringRequest TextGenerationRequest"
            " VlmGenerationRequest"
        ),
        "pipegen.drivers.route": "Route attach count_tokens route",
        "pipegen.drivers.samples": "grid samples",
        "pipegen.drivers.scoring": "choose perplexity score scoring",
        "pipegen.core.slots": "Batch Slot is_ok",
        "pipegen.drivers.streaming": "Delta Done astream stream",
        "pipegen.drivers.progress": "Progress watched",
        "pipegen.drivers.repeat": "repeat",
        "pipegen.drivers.tools": "tools",
        "pipegen.drivers.turns": "turns",
        "pipegen.drivers.mapping": "aimap aimap_keyed imap imap_keyed",
    }.items()
    for name in names.split()
}
"""The module of each public name that is no module itself."""


_MODULES = {
    "backends": "pipegen.backends",
    "plugins": "pipegen.plugins",
    "ray": "pipegen.jobs.ray",
    "stages": "pipegen.stages",
}
"""The public names that are modules."""

# type checkers see the imports above, and would take any name for one that is there
if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        import importlib

        if name == "__version__":
            from pipegen.core.distribution import version

            value = globals()[name] = version()
            return value
        if name in _HOMES:
            value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
            return value
        if name in _MODULES:
            return importlib.import_module(_MODULES[name])
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
