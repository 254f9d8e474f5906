"""One row while it is generated: everything that belongs to it alone; and how many rows are read in
one pass.

A row outlives its batch: when a batch has to be split, its rows go on in smaller ones from where
they were.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from returns.result import Failure, Result, Success

from pipegen.answer.barred import spellings
from pipegen.backends.engine_rows import RowState
from pipegen.core.errors import PluginFailed
from pipegen.core.slots import is_ok
from pipegen.ending.plugin_state import ask_plugin
from pipegen.ending.stop_state import ending_ids
from pipegen.engines.plugin import Plugin, RowContext
from pipegen.engines.protocol import TokensMade
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.results import Encoded, Finish, TokenLogprob

T = TypeVar("T")

SPARE = 64
"""Padding tokens of which a pass over a few prompts does not become slower: a pass of its own would
cost more.
"""


class HFRow(RowState):
    """A row that the model of this process generates."""

    def __init__(
        self,
        position: int,
        encoded: Encoded,
        tokenizer: Tokenizer,
        eos_token_ids: tuple[int, ...],
        plugins: tuple[Plugin, ...],
        *,
        text: bool = False,
    ) -> None:
        super().__init__(position, encoded, tokenizer, eos_token_ids, plugins, text=text)
        options = encoded.options
        self.ending_ids: Sequence[int] = (
            tuple(ending_ids(options, tokenizer, eos_token_ids)) if options.min_new_tokens else ()
        )
        self.barred = spellings(options.bad_words, tokenizer) if options.bad_words else ()
        self.prompt_ids = encoded.prompt.token_ids
        self.images = images_of(encoded)
        self.adapter = options.adapter or ""
        self.event: TokensMade | None = None
        """What tells of the newest tokens; None where nobody wants to know."""
        self.read_first = 0
        """How many tokens were read in one pass, where those after them must come one by one."""
        self.mailbox: Any = None
        """Where the row's events go."""
        # a reproducible stream, the same on every platform; without a seed, any
        self._random = random.Random(options.seed)  # noqa: S311
        self.uniform = self._random.random()
        """The draw for the next token, in [0, 1)."""
        self._ids: torch.Tensor | None = None
        self._there = 0  # so many generated ids are on the device
        self._processors: list[tuple[Plugin, object]] = []
        self._criteria: list[tuple[Plugin, object]] = []
        for plugin in plugins:
            context = RowContext(
                prompt_length=len(self.prompt_ids),
                tokenizer=getattr(tokenizer, "raw", tokenizer),
                exact_tokenizer=tokenizer,
            )
            for make, hooks in (
                (plugin.logits_processor, self._processors),
                (plugin.stopping_criteria, self._criteria),
            ):
                if make is not None:
                    hooks.append(
                        (plugin, self._ask(plugin, partial(_hook_of, plugin, make, context)))
                    )
        self.has_processors = bool(self._processors)

    @property
    def sequence(self) -> tuple[int, ...]:
        """Prompt and generated ids together."""
        return (*self.prompt_ids, *self.token_ids)

    @property
    def length(self) -> int:
        """How many tokens prompt and answer have together so far."""
        return len(self.prompt_ids) + len(self.token_ids)

    @property
    def left(self) -> int:
        """How many tokens the row may still make."""
        return (self.options.max_new_tokens or 0) - len(self.token_ids)

    @property
    def order(self) -> tuple[int, int]:
        """By what rows are sorted, smallest first.

        The longest answer is first, since a long row that starts last would end alone. Of equal
        answers the longest prompt with its images is first: what is too large for the memory shows
        at once.
        """
        patches = sum(
            math.prod(image.grid) if image.grid is not None else image.tokens
            for image in self.encoded.prompt.images
        )
        return -self.left, -self.length - patches

    @property
    def source(self) -> Hashable:
        """What the row's next token depends on, besides sampling: rows of one source are read
        once.
        """
        return self.sequence, self.images, self.adapter

    def process(self, scores: torch.Tensor) -> torch.Tensor:
        """The scores (1, vocabulary) after the plugins' logits processors, which see this row's ids
        without padding.
        """
        for plugin, processor in self._processors:
            answer = self._ask(
                plugin, partial(_processed, plugin, processor, self.ids(scores.device), scores)
            )
            if answer is None:
                return scores
            scores = answer
        return scores

    def ids(self, device: torch.device) -> torch.Tensor:
        """Prompt and generated ids, shape (1, length). They are kept on the device, and only new
        ones are brought there.
        """
        generated, before = len(self.token_ids), len(self.prompt_ids)
        if self._ids is None or self._ids.device != device:
            self._ids = torch.zeros((1, self.length + self.left), dtype=torch.long, device=device)
            self._ids[0, :before] = torch.tensor(self.prompt_ids)
            self._there = 0
        if self._there < generated:
            self._ids[0, before + self._there : before + generated] = torch.tensor(
                self.token_ids[self._there :]
            )
            self._there = generated
        return self._ids[:, : before + generated]

    def accept(self, logprob: TokenLogprob | None, device: torch.device) -> None:
        """Go on after the token that the row's fold has just taken. Hooks of plugins see the
        row's ids on that device.
        """
        if logprob is not None:
            self.logprobs.append(logprob)
        self.uniform = self._random.random()
        self.fail(self.fold.failure)
        if self._criteria and self.fold.finish in (None, Finish.LENGTH):
            self._halt(self.ids(device))
        if self._text:
            token_ids, text = (
                ((), "") if self.event is None else (self.event.token_ids, self.event.text or "")
            )
            self.event = TokensMade(
                row=self.position,
                token_ids=(*token_ids, self.token_ids[-1]),
                text=text + self.fold.shown,
            )

    def _halt(self, ids: torch.Tensor) -> None:
        for plugin, criterion in self._criteria:
            halts = self._ask(plugin, partial(_halts, plugin, criterion, ids))
            if halts is None:
                return
            if halts and len(self.token_ids) > (self.options.min_new_tokens or 0):
                self.ended_by_plugin = self.ended_by_plugin or plugin.name

    def _ask(self, plugin: Plugin, hook: Callable[[], Result[T, PluginFailed]]) -> T | None:
        """Call a plugin's hook. What it raises is this row's failure and no other's; then it gives
        None.
        """
        if self.error is not None:
            return None
        answer = ask_plugin(plugin, hook)
        if not is_ok(answer):
            self.error = answer.failure()
            return None
        return answer.unwrap()


def _hook_of(
    plugin: Plugin, make: Callable[[RowContext], Any], context: RowContext
) -> Result[Any, PluginFailed]:
    """The hook that a plugin makes for a row."""
    hook = make(context)
    if callable(hook):
        return Success(hook)
    message = (
        f"plugin {plugin.name!r}: the function that makes a row's hook must return a LogitsProcessor"
        f" or StoppingCriteria, not {type(hook).__name__}"
    )
    return Failure(PluginFailed(message, plugin=plugin.name))


def _processed(
    plugin: Plugin, processor: Any, ids: torch.Tensor, scores: torch.Tensor
) -> Result[torch.Tensor, PluginFailed]:
    """The scores after one logits processor."""
    answer = processor(ids, scores)
    if not isinstance(answer, torch.Tensor) or answer.shape != scores.shape:
        seen = (
            f"shape {tuple(answer.shape)}"
            if isinstance(answer, torch.Tensor)
            else type(answer).__name__
        )
        message = (
            f"plugin {plugin.name!r}: its logits processor must return scores of shape"
            f" {tuple(scores.shape)}, not {seen}"
        )
        return Failure(PluginFailed(message, plugin=plugin.name))
    processed = answer.to(scores.dtype)
    if not bool((processed > -torch.inf).any()):
        return Failure(
            PluginFailed(
                f"plugin {plugin.name!r}: its logits processor left no token to choose",
                plugin=plugin.name,
            )
        )
    return Success(processed)


def _halts(plugin: Plugin, criterion: Any, ids: torch.Tensor) -> Result[bool, PluginFailed]:
    """Whether a stopping criterion ends the row."""
    answer = criterion(ids, None)
    with contextlib.suppress(RuntimeError, TypeError, ValueError):  # neither yes nor no
        verdict = torch.as_tensor(answer)
        if verdict.numel():
            return Success(bool(verdict.all()))
    message = (
        f"plugin {plugin.name!r}: its stopping criterion must return True or False, or a tensor of"
        f" them, not {type(answer).__name__}"
    )
    return Failure(PluginFailed(message, plugin=plugin.name))


def images_of(encoded: Encoded) -> tuple[Hashable, ...]:
    """A prompt's images, by their content and size."""
    return tuple(
        (image.digest, image.grid, image.width, image.height) for image in encoded.prompt.images
    )


def pass_tokens(device: torch.device) -> int:
    """How many tokens of several prompts are read in one pass. On a processor a token of a larger
    one costs a tenth more: what it makes leaves the caches.
    """
    return 4096 if device.type == "cpu" else 8192


def group_size(prompts: Sequence[int], most_rows: int, tokens: int | None = None) -> int:
    """How many of these prompts, from the first on, are read in one pass: at least one, and at most
    `most_rows`.

    Padded to the longest of them they hold at most `tokens` tokens. The padding is at most a
    quarter of the prompts, or `SPARE` tokens.

    >>> (
    ...     group_size([400, 390, 40, 30], most_rows=4),
    ...     group_size([40, 30, 20], most_rows=4),
    ...     group_size([40, 30, 20], most_rows=4, tokens=80),
    ... )
    (2, 3, 2)
    """
    longest, tokens_read = prompts[0], prompts[0]
    for size, prompt in enumerate(prompts[1:most_rows], 1):
        longest, tokens_read = max(longest, prompt), tokens_read + prompt
        padded = longest * (size + 1)
        if (tokens is not None and padded > tokens) or padded - tokens_read > max(
            SPARE, tokens_read // 4
        ):
            return size
    return min(len(prompts), most_rows)
