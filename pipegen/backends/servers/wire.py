"""What crosses the wire between pipegen and a server, as records.

One file of pure functions for each engine builds these records and reads them
(`pipegen.backends.servers.vllm_dialect`, `.sglang_dialect`, `.openai`); one shared transport sends them. A further
engine is one more such file, whose functions a `Wire` gathers.

>>> WireRequest(path="/generate", body={"input_ids": [1]}).path
'/generate'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import is_
from typing import Any, Generic, NamedTuple, ParamSpec, TypeAlias, TypeVar

from pipegen.core.errors import GenerationError, UnsupportedOption
from pipegen.core.slots import Slot
from pipegen.engines.capabilities import Capability
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.fields import record
from pipegen.records.frozen import NOTHING
from pipegen.records.option_records import GenerationOptions
from pipegen.records.results import PreparedImage, TokenLogprob

P = ParamSpec("P")
R = TypeVar("R")
Score: TypeAlias = tuple[float, tuple[int, float], tuple[tuple[int, float], ...]]
"""Of a scored token its log probability, the likeliest token there with its own, and as many of the
likeliest as were asked for.
"""
Scores: TypeAlias = tuple[Score, ...]


class ServerRequest(NamedTuple):
    """One generation as a server is asked for it, whatever the engine: everything set, nothing of
    the wire's own words yet.
    """

    options: GenerationOptions
    """Resolved: a value for everything."""
    token_ids: tuple[int, ...] = ()
    """The prompt, with one placeholder for each image; empty where the server renders."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """The prompt in the OpenAI chat form, where the server renders."""
    tools: tuple[Mapping[str, Any], ...] = ()
    ending_ids: tuple[int, ...] = ()
    """All ids that end the row, the model's own end tokens among them."""
    stops: tuple[str, ...] = ()
    """Stop strings that the server is to halt at, as an early exit; where the text ends is decided
    by pipegen.
    """
    images: tuple[PreparedImage, ...] = ()
    places: tuple[tuple[int, int], ...] = ()
    """Where each image's tokens lie in the expanded prompt: offset and length."""
    resized: bool = False
    """Whether the server's own processor would give the images other sizes than they were prepared
    to.
    """
    features: Any = None
    """What the server made of such images in a request before this one; `token_ids` are then those
    of the expanded prompt.
    """
    prompt_tokens: int = 0
    """How long the prompt is with its images expanded; 0 where that is not known."""
    model: str | None = None
    """The name that the server knows the model by."""
    rid: str = ""
    """The name of this very attempt, by which it can be aborted."""
    stream: bool = False
    scored: int = 0
    """How many of the prompt's last tokens have their log probabilities asked; 0 where a generation
    is.
    """
    scored_top: int = 0
    """How many of the likeliest tokens of each such place are asked for too."""
    params: Mapping[str, Any] | None = None
    """Sampling parameters in the server's own words, in place of those of the options."""
    extra_body: Mapping[str, Any] = NOTHING
    """Merged into the body last, deeply."""


class WireRequest(NamedTuple):
    """One HTTP request; the body is plain data, sent as JSON."""

    path: str
    body: Mapping[str, Any] | None = None
    method: str = "POST"
    stream: bool = False
    rid: str = ""
    lacks: str = ""
    """The word under which it is remembered that a server has no such endpoint; empty where there
    is no other way.
    """


class WireReply(NamedTuple):
    """One HTTP answer, with its whole body."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = NOTHING
    """Looked up by names in lower case."""


@record
class Completion:
    """What a server generated, as its answer or one event of its stream says it; in an event, only
    what is new.
    """

    token_ids: tuple[int, ...] | None = None
    """None where the server gives no ids."""
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish: str | None = None
    """`stop`, `length`, `abort`, ... in the engine's own word (see `finish_words.meaning_of`); None
    while it runs.
    """
    stop: int | str | None = None
    """The stop token or stop string that the server says it halted at."""
    prompt_token_ids: tuple[int, ...] | None = None
    """The prompt as the server ran it, where it says so."""
    text: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    """In an event, pieces of calls; each names the `index` of its call."""
    refusal: str | None = None
    """The words of a model that refuses, where the server gives them apart."""
    words: str = ""
    """What the server says of an end that is none."""
    answer_id: str = ""
    """The server's name for the answer that an event is of; empty where it has none."""
    usage: Mapping[str, int] = NOTHING
    features: Any = None
    """What the server made of the images, where that was all that it was asked."""
    scores: Scores | None = None
    """Those of the tokens that were to be scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a server was found to offer."""

    models: Mapping[str, int | None] = field(default_factory=dict)
    """The models that it serves, each with its context length in tokens, where it says so."""
    adapters: frozenset[str] = frozenset()
    """Those of them that are adapters of another."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What its own pages of facts say: `/version` of vLLM, `/server_info` of both."""
    fields: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The fields of its requests by path, as its own schema names them (`/openapi.json`)."""
    lacks: frozenset[str] = frozenset()
    """What it was found not to offer, in the words of `WireRequest.lacks` and `Wire.lacking`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """The pure functions of one engine. See `docs/extending.md` for one written from scratch."""

    name: str
    """Of the route, and of the engine's row in `pipegen.ENGINES`, if it has one."""
    default_url: str
    """Where such a server listens on this machine."""
    key_variable: str
    """The environment variable that holds the key."""
    to_wire: Callable[[ServerRequest, Facts], Slot[WireRequest]]
    """The request, or why this engine cannot be asked this."""
    from_wire: Callable[[Any, ServerRequest], Slot[tuple[Completion, ...]]]
    """The completion of an answer with a good status."""
    from_event: Callable[[Any, ServerRequest, int], Slot[tuple[Completion, ...]]]
    """What one event of a stream brings, given how many tokens came before."""
    classify: Callable[[WireReply, ServerRequest], GenerationError]
    """The error that an answer with another status, or an error in a stream, stands for."""
    lacking: Callable[[WireReply, WireRequest], str] = lambda reply, request: ""
    """What a refusal shows the server to lack, so that it is asked in another way; empty where it
    shows nothing of the kind.
    """
    server_side_stops: Callable[[GenerationOptions], frozenset[str]] = lambda options: frozenset(
        {"ids", "stops"}
    )
    """What the server may end a row at by itself with these options: `ids`, `stops`. Where it may
    not, pipegen follows the stream, and closes it.
    """
    unsupported_words: Callable[[tuple[str, ...], Tokenizer], UnsupportedOption | None] | None = (
        None
    )
    """What the server would leave of `bad_words`; None where it is sent none."""
    keeps_sizes: bool = False
    """Whether the server can be asked to keep images at sizes that its own processor would change:
    for a `resized` ask without `features`, `to_wire` then makes the request for them, and
    `from_wire` reads its answer."""
    scores: Callable[[Facts, str | None], bool] = lambda facts, adapter: False
    """Whether such a server can be asked for the log probabilities of a prompt's tokens, by that
    adapter (`ServerRequest.scored`).
    """
    raw_stops: bool = False
    """Whether the server looks for stop strings where special tokens show, which to pipegen are
    invisible in the text.
    """
    known: bool = True
    """As `EngineRow.known`."""
    exact_limit: bool = False
    """Whether a row may fill the limit that a chat server names, so that its answers are judged by
    it.
    """
    abort: Callable[[str], WireRequest] | None = None
    """The request that ends another by its `rid`; None where closing the connection does."""
    honours: frozenset[Capability] | None = None
    """The engine's capabilities, where it has no row in `pipegen.ENGINES`."""
    about: str | None = None
    """The path of the engine's page of facts."""
    not_deterministic: Callable[[Facts], str] = lambda facts: "ask another engine"
    """What to do where such a server does not report that answers are independent of their batch;
    empty where it does.
    """
    started: str | None = None
    """The path of the page that says how the server was started, where it may have one."""
    paths: tuple[str, ...] = ()
    """The paths whose fields its schema names. Fields of `extra_body` that are not among them are
    refused; any field is sent where this is empty.
    """
    limit: Callable[[Facts], int | None] = lambda facts: None
    """How many tokens a row may have, prompt and answer together, as that page says it; the lower
    one counts where the list of models says another.
    """


def skips_special(options: GenerationOptions) -> bool:
    """Whether special tokens are left out of the text.

    >>> skips_special(GenerationOptions())
    True
    """
    return options.decode is None or options.decode.skip_special_tokens is not False


class LastCallCache(Generic[P, R]):
    """What follows from objects that the rows of a batch share, worked out once. It is a pure
    function that gives its last answer again while it is asked with the very same objects. Nobody
    may change what it gives.

    >>> lengths = LastCallCache(lambda names: sorted(map(len, names)))
    >>> names = ("bc", "a")
    >>> lengths(names), lengths(names) is lengths(names)
    ([1, 2], True)
    """

    def __init__(self, work: Callable[P, R]) -> None:
        self._work = work
        # replaced as one, since calls of several threads meet here
        self._held: tuple[tuple[object, ...], R] | None = None

    def __call__(self, *given: P.args, **named: P.kwargs) -> R:
        held = self._held
        if held is None or named or len(held[0]) != len(given) or not all(map(is_, held[0], given)):
            self._held = held = given, self._work(*given, **named)
        return held[1]
