"""What is known of a model, as a value that is read once.

A stage reads a `Model` and never the engine itself, before a call and after it. It is read when a
row first needs it, and is the same from then on, whatever the engine learns. So stages are
functions of their rows. What only a server can say, such as its own limit, is no part of it. A call
asks for that, and judges its own rows by it.

>>> from pipegen.testing.fake import FakeEngine
>>> engine = FakeEngine("", context_length=8)
>>> read = reader_of(engine)
>>> engine.capabilities = Capabilities(engine="fake", honours=frozenset(), context_length=4)
>>> reader_of(engine) is read, read().unwrap().capabilities.context_length
(True, 4)
>>> engine.capabilities = Capabilities(engine="fake", honours=frozenset(), context_length=2)
>>> read().unwrap().capabilities.context_length
4
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

from immutabledict import immutabledict
from returns.result import Failure, Success

from pipegen.core.errors import BackendFailed, CallFailed, GenerationError
from pipegen.core.names import InvalidField
from pipegen.core.slots import Slot
from pipegen.engines.capabilities import Capabilities
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import takes_tokens
from pipegen.engines.tokenizer import Renderer, Tokenizer
from pipegen.records.fields import record, unchecked_replace
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.results import PreparedImage

A = TypeVar("A")
B = TypeVar("B")


@record
class Model:
    """What is known of any engine and its model."""

    name: str
    """The engine's name."""
    capabilities: Capabilities
    """What it honours, and its limits, as far as they are known before a call."""
    plugins: tuple[Plugin, ...]
    """The attached plugins, in order."""


@record
class TokenModel(Model):
    """What is known of a model that takes and gives token ids."""

    tokenizer: Tokenizer
    """Text to ids and back."""
    renderer: Renderer
    """Messages to text, by the chat template."""
    eos_token_ids: tuple[int, ...]
    """All ids that end an answer."""
    bos_token: str
    """What a plain prompt must begin with; empty where that is nothing."""
    image_placeholder: str
    """The control token that stands for an image in a prompt; empty where there is none."""
    video_placeholder: str = ""
    """The control token that stands for a video; empty where there is none."""
    generation_config: immutabledict[str, Any]
    """The checkpoint's own generation settings."""
    prepare_image: Callable[[ImageSource, VlmPreprocessOptions, int], Slot[PreparedImage]]
    """Decodes and resizes one image, or the frames of one video, as the model wants it."""
    longest_scored: int | None = None
    """The most tokens of a context and its continuation; None where no limit is known."""


def token_model(engine: Any, capabilities: Capabilities) -> TokenModel:
    """The model of an engine that takes token ids, by its attributes. Raises as reading these
    does.
    """
    return TokenModel(
        name=engine.name,
        capabilities=capabilities,
        plugins=engine.plugins,
        tokenizer=engine.tokenizer,
        renderer=engine.renderer,
        eos_token_ids=tuple(engine.eos_token_ids),
        bos_token=engine.bos_token or "",
        image_placeholder=engine.image_placeholder or "",
        video_placeholder=getattr(engine, "video_placeholder", None) or "",
        generation_config=engine.generation_config,
        prepare_image=engine.prepare_image,
    )


def read_model(engine: Any) -> Model:
    """What is known of an engine's model now. Raises as reading its attributes does."""
    if hasattr(engine, "read_model"):
        engine_model: Model = engine.read_model()
        return engine_model
    if not takes_tokens(engine):
        return Model(name=engine.name, capabilities=engine.capabilities, plugins=engine.plugins)
    model = token_model(engine, engine.capabilities)
    return unchecked_replace(model, longest_scored=getattr(engine, "longest_scored", None))


class ModelReader:
    """The model of one engine: read at the first call that can, and the same from then on.

    One that cannot be read, such as a checkpoint that is not there, fails all rows of a run with
    one error. The next run reads it again.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.known: dict[str, Any] = {}
        """The model, once it was read."""
        self._runs: WeakSet[Any] = WeakSet()
        self._failure: Failure[Any] | None = None
        """Why it could not be read, in the runs under way."""

    def begin(self, run: object) -> None:
        """A run begins: what failed before it is tried again."""
        self._runs.add(run)
        self._failure = None

    def end(self, run: object) -> None:
        """A run is over."""
        self._runs.discard(run)
        self._failure = None

    def __call__(self) -> Slot[Any]:
        """The model, or why it cannot be read; needs no weights."""
        model = self.known.get("model")
        return self._read() if model is None else Success(model)

    def _read(self) -> Slot[Any]:
        if self._failure is not None:
            return self._failure
        try:
            model = read_model(self._engine)
        except CallFailed as failure:
            return self._failed(failure.error)
        except InvalidField as refusal:
            hint = "correct the setting that the message names"
            return self._failed(BackendFailed(str(refusal), backend=self._engine.name, hint=hint))
        return Success(self.known.setdefault("model", model))  # of two threads, the first one's

    def _failed(self, error: GenerationError) -> Slot[Any]:
        failed: Failure[Any] = Failure(error)
        if self._runs:
            self._failure = failed
        return failed


_readers: WeakValueDictionary[int, ModelReader] = WeakValueDictionary()
"""Each holds its engine, so that no other engine has its number."""


def reader_of(engine: Any) -> ModelReader:
    """The reader of an engine's model: stages of one engine share it."""
    return _readers.setdefault(id(engine), ModelReader(engine))


def begin_run(run: object, engines: Iterable[Any]) -> None:
    """Until `end_run`, a model of these engines that cannot be read fails all rows of the run."""
    for engine in engines:
        reader_of(engine).begin(run)


def end_run(run: object, engines: Iterable[Any]) -> None:
    """The run is over: a model that could not be read is tried again."""
    for engine in engines:
        reader_of(engine).end(run)


def on_model(engine: Any, work: Callable[[A, Any], Slot[B]]) -> Callable[[A], Slot[B]]:
    """A function of a value and the engine's model, as a stage: a function of the value."""
    read = reader_of(engine)

    def stage(value: A) -> Slot[B]:
        model = read.known.get("model")
        return read().bind(partial(work, value)) if model is None else work(value, model)

    return stage
