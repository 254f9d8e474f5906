"""One row of a call on vLLM: its prompt as vLLM takes it, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from returns.result import Failure, Success

from pipegen.backends.vllm.failures import failure
from pipegen.backends.vllm.sampling import MOST_LOGPROBS, logprob_of
from pipegen.core.errors import GenerationError, MalformedResponse
from pipegen.core.slots import Slot
from pipegen.engines.plugin import Plugin
from pipegen.engines.tokenizer import Tokenizer
from pipegen.media.image import as_pil
from pipegen.records.results import Encoded, Prompt, Raw, TokenLogprob
from pipegen.stages.parts.row_decoder import RowDecoder, ending_ids

__all__ = ["Row", "differs", "vllm_prompt"]


def vllm_prompt(prompt: Prompt, *, resized: bool) -> dict[str, Any]:
    """The prompt as vLLM takes it: token ids with one placeholder for each image (vLLM expands them, also those already expanded), and the images.

    `resized` says that the images have the size that the model works on, so that vLLM's processor is to leave it alone.
    """
    if not prompt.images:
        return {"prompt_token_ids": list(prompt.token_ids)}
    kwargs = {"mm_processor_kwargs": {"do_resize": False}} if resized else {}
    return {"prompt_token_ids": list(prompt.compact_token_ids), "multi_modal_data": {"image": [as_pil(image) for image in prompt.images]}, **kwargs}


def differs(rendered: Any, prompt: Prompt) -> MalformedResponse | None:
    """What is wrong where vLLM made other ids or grids of the prompt than pipegen: its answer would be to another prompt."""
    ids = rendered.get("prompt_token_ids") if isinstance(rendered, dict) else None
    if ids is not None and "mm_kwargs" in rendered:
        grids = [_grid(item) for item in rendered["mm_kwargs"].get("image", ())]
        for index, (seen, image) in enumerate(zip(grids, prompt.images, strict=False)):
            if seen is not None and image.grid is not None and seen != image.grid:
                return MalformedResponse(f"vLLM made grid {seen} of image {index}, which is {image.grid} for pipegen")
    if ids is None or (not isinstance(rendered.get("type"), str) and prompt.images):
        return None
    return other_ids(ids, prompt)


def other_ids(ids: Sequence[int], prompt: Prompt) -> MalformedResponse | None:
    """What is wrong where vLLM ran another prompt than pipegen's."""
    if tuple(ids) == prompt.token_ids:
        return None
    pairs = zip(ids, prompt.token_ids, strict=False)
    first = next((at for at, (seen, wanted) in enumerate(pairs) if seen != wanted), min(len(ids), len(prompt.token_ids)))
    words = f"vLLM ran a prompt of {len(ids)} tokens, which has {len(prompt.token_ids)} for pipegen; they differ from position {first} on"
    return MalformedResponse(words, hint="report it with the model and vLLM's version; the answer was not used")


def _grid(item: Any) -> tuple[int, ...] | None:
    """The grid of one processed image, where the model has one."""
    data = item.get_data() if hasattr(item, "get_data") else {}
    grid = data.get("image_grid_thw")
    return None if grid is None else tuple(int(side) for side in grid.flatten().tolist())


class Row:
    """A row of a call: `position` is its place among the call's inputs, `token_ids` is what it has made so far.

    Where nobody waits for single tokens, neither the caller (`watched`) nor a stop string or plugin, the row takes one output, at its end (`whole`).
    """

    def __init__(
        self,
        position: int,
        encoded: Encoded,
        tokenizer: Tokenizer,
        eos_token_ids: tuple[int, ...],
        plugins: tuple[Plugin, ...],
        *,
        watched: bool,
        vocab_size: int | None = None,
        most_logprobs: int = MOST_LOGPROBS,
    ) -> None:
        self._most_logprobs = most_logprobs
        self.position = position
        self.encoded = encoded
        self.error: GenerationError | None = None
        self.done = False
        self.ending_ids = ending_ids(encoded.options, tokenizer, eos_token_ids, vocab_size)
        self.token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._aborted = False
        self._prompt_seen = False
        self._follower = RowDecoder(encoded.options, tokenizer, eos_token_ids, plugins, text=False)
        self.whole = not (watched or self._follower.reads)

    def fail(self, error: GenerationError) -> None:
        """The row ends with this error."""
        self.error, self.done = error, True

    def take(self, output: Any) -> tuple[int, ...]:
        """Take what vLLM gave; the tokens that belong to the row, up to the one that ends it."""
        if not self._prompt_seen and output.prompt_token_ids is not None:  # each output brings the same
            self._prompt_seen = True
            wrong = other_ids(output.prompt_token_ids, self.encoded.prompt)
            if wrong is not None:
                self.fail(wrong)
                return ()
        completion = output.outputs[0]
        made = [int(token_id) for token_id in completion.token_ids]
        began = len(self.token_ids)
        for place, token_id in enumerate(made):
            self.token_ids.append(token_id)
            if self.encoded.options.logprobs:
                self._note(token_id, completion.logprobs[place] if completion.logprobs is not None and place < len(completion.logprobs) else None)
            self._follower.feed(token_id)
            if self._follower.failure is not None:
                self.fail(self._follower.failure)
            if self.done or self._follower.finish is not None:
                self.done = True
                return () if self.error is not None else tuple(self.token_ids[began:])
        if output.finished:
            self._ended(completion.finish_reason)
        return tuple(made)

    def _note(self, token_id: int, table: Any) -> None:
        entry = logprob_of(token_id, table, self.encoded.options.top_logprobs or 0, most_logprobs=self._most_logprobs)
        if entry is None:
            self.fail(MalformedResponse(f"vLLM gave no logprob for generated token {len(self.token_ids) - 1} (id {token_id})"))
        else:
            self._logprobs.append(entry)

    def _ended(self, reason: str | None) -> None:
        """vLLM ended the row at a token that ends it by none of pipegen's rules."""
        self.done = True
        if reason == "abort":
            self._aborted = True
        elif reason == "error":
            self.fail(failure("vLLM ended the row with an error", "row"))
        else:
            self.fail(MalformedResponse(f"vLLM ended the row as {reason!r} after {len(self.token_ids)} tokens, where nothing ends it"))

    def slot(self) -> Slot[Raw]:
        """The finished row's answer."""
        if self.error is not None:
            return Failure(self.error)
        logprobs = tuple(self._logprobs) if self.encoded.options.logprobs else None
        return Success(Raw(encoded=self.encoded, token_ids=tuple(self.token_ids), logprobs=logprobs, aborted=self._aborted))
