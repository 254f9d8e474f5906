"""The stages of a route, each bound to an engine. A route is their composition, and one of your own
may be made of the same stages:

    resolve(engine) >> render(engine) >> tokenize(engine) >> fit(engine) >> pg.call(engine) >>
        decode(engine) >> stop(engine) >> trim(engine)

For an engine that takes messages and gives text, such as a chat server:

    resolve(engine) >> pg.call(engine) >> trim(engine)
"""

import sys
import typing

if typing.TYPE_CHECKING:
    from pipegen.records.results import Decoded, Encoded, Raw, ResolvedRequest
    from pipegen.stages.ending import decode, stop
    from pipegen.stages.fitting import fit
    from pipegen.stages.rendering import Rendered, render
    from pipegen.stages.resolving import resolve
    from pipegen.stages.tokenizing import tokenize
    from pipegen.stages.trimming import trim

__all__ = [
    "Decoded",
    "Encoded",
    "Raw",
    "Rendered",
    "ResolvedRequest",
    "decode",
    "fit",
    "render",
    "resolve",
    "stop",
    "tokenize",
    "trim",
]

_HOMES = {
    "Decoded": "pipegen.records.results",
    "Encoded": "pipegen.records.results",
    "Raw": "pipegen.records.results",
    "Rendered": "pipegen.stages.rendering",
    "ResolvedRequest": "pipegen.records.results",
    "decode": "pipegen.stages.ending",
    "fit": "pipegen.stages.fitting",
    "render": "pipegen.stages.rendering",
    "resolve": "pipegen.stages.resolving",
    "stop": "pipegen.stages.ending",
    "tokenize": "pipegen.stages.tokenizing",
    "trim": "pipegen.stages.trimming",
}

if not typing.TYPE_CHECKING:  # pragma: no branch - a stage is imported when it is first used

    def __getattr__(name: str) -> object:
        import importlib

        if name in _HOMES:
            value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
            return value
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}", name=name, obj=sys.modules[__name__]
        )

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
