"""One row of a call on vLLM: its prompt as vLLM takes it, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from returns.result import Failure

from pipegen.backends.checkpoint.load_errors import engine_failed
from pipegen.backends.checkpoint.video_processors import as_array, metadata_of_video
from pipegen.backends.engine_rows import RowState, other_prompt
from pipegen.backends.grammar import form_of, has_form
from pipegen.backends.servers.logprobs import Pair, scores_in, token_scores
from pipegen.backends.servers.reading import malformed
from pipegen.backends.vllm.vllm_sampling import MOST_LOGPROBS, logprob_of
from pipegen.core.errors import MalformedResponse, UnsupportedOption
from pipegen.core.slots import Slot, is_ok
from pipegen.ending.stop_state import ending_ids
from pipegen.engines.plugin import Plugin
from pipegen.engines.protocol import TokensMade
from pipegen.engines.tokenizer import Tokenizer
from pipegen.media.image import as_pil
from pipegen.records.results import Encoded, Finish, Prompt, Raw
from pipegen.records.scores import ScoreInput, TokenScores


def vllm_prompt(prompt: Prompt, *, resized: bool) -> dict[str, object]:
    """The prompt as vLLM takes it: token ids with one placeholder for each image and video (vLLM
    expands them, also those already expanded), the images, and the frames with their times.

    `resized` says that the images have the size that the model works on, so that vLLM's processor
    is to leave it alone.
    """
    if not prompt.images:
        return {"prompt_token_ids": list(prompt.token_ids)}
    data: dict[str, list[object]] = {}
    for image in prompt.images:
        if image.is_video:
            data.setdefault("video", []).append((as_array(image), metadata_of_video(image)))
        else:
            data.setdefault("image", []).append(as_pil(image))
    kwargs = {"do_resize": False} if resized else {}
    if "video" in data:
        kwargs |= {"do_sample_frames": False}
    return {
        "prompt_token_ids": list(prompt.compact_token_ids),
        "multi_modal_data": data,
        **({"mm_processor_kwargs": kwargs} if kwargs else {}),
    }


def differs(rendered: Any, prompt: Prompt) -> MalformedResponse | None:
    """What is wrong where vLLM made other ids or grids of the prompt than pipegen: its answer would
    be to another prompt.
    """
    ids = rendered.get("prompt_token_ids") if isinstance(rendered, dict) else None
    if ids is not None and "mm_kwargs" in rendered:
        for kind in ("image", "video"):
            grids = [_grid(item, kind) for item in rendered["mm_kwargs"].get(kind, ())]
            images = [image for image in prompt.images if image.is_video == (kind == "video")]
            for index, (seen, image) in enumerate(zip(grids, images, strict=False)):
                if seen is not None and image.grid is not None and seen != image.grid:
                    return MalformedResponse(
                        f"vLLM made grid {seen} of {kind} {index}, which is {image.grid} for"
                        " pipegen"
                    )
    if ids is None or (not isinstance(rendered.get("type"), str) and prompt.images):
        return None
    return other_prompt(ids, prompt, "vLLM", "report it with the model and vLLM's version")


def _grid(item: Any, kind: str) -> tuple[int, ...] | None:
    """The grid of one processed image or video, where the model has one."""
    data = item.get_data() if hasattr(item, "get_data") else {}
    grid = data.get(f"{kind}_grid_thw")
    return None if grid is None else tuple(int(side) for side in grid.flatten().tolist())


class VLLMRow(RowState):
    """A row on vLLM.

    Where nobody waits for single tokens, neither the caller (`text`) nor a stop string or plugin,
    the row takes one output, at its end (`whole`).
    """

    def __init__(
        self,
        position: int,
        encoded: Encoded,
        tokenizer: Tokenizer,
        eos_token_ids: tuple[int, ...],
        plugins: tuple[Plugin, ...],
        *,
        text: bool,
        vocab_size: int | None = None,
        most_logprobs: int = MOST_LOGPROBS,
    ) -> None:
        super().__init__(position, encoded, tokenizer, eos_token_ids, plugins, text=text)
        self._most_logprobs = most_logprobs
        self.ending_ids = ending_ids(encoded.options, tokenizer, eos_token_ids, vocab_size)
        self._tokenizer, self._ends = (
            tokenizer,
            {
                *eos_token_ids,
                *tokenizer.special_tokens.values(),
            },
        )
        self._prompt_seen = False
        self.whole = not self.fold.reads

    def take_output(self, output: Any) -> TokensMade | None:
        """Take what vLLM returned; the event of the tokens that belong to the row."""
        # each output brings the same
        if not self._prompt_seen and output.prompt_token_ids is not None:
            self._prompt_seen = True
            self.fail(
                other_prompt(
                    output.prompt_token_ids,
                    self.encoded.prompt,
                    "vLLM",
                    "report it with the model and vLLM's version",
                )
            )
        if self.error is not None:
            return None
        completion = output.outputs[0]
        ids = [int(token_id) for token_id in completion.token_ids]
        began = len(self.token_ids)
        event = self.take(ids)
        if self.options.logprobs:
            self._note(began, completion.logprobs or ())
        if output.finished and not self.done:
            self._ended(completion.finish_reason)
        return event if self.error is None else None

    def _note(self, began: int, tables: Sequence[object]) -> None:
        for index, token_id in enumerate(self.token_ids[began:]):
            table = tables[index] if index < len(tables) else None
            entry = logprob_of(
                token_id, table, self.options.top_logprobs or 0, most_logprobs=self._most_logprobs
            )
            if entry is None:
                self.fail(
                    MalformedResponse(
                        f"vLLM gave no logprob for generated token {began + index} (id {token_id})"
                    )
                )
                return
            self.logprobs.append(entry)

    def _ended(self, reason: str | None) -> None:
        """vLLM ended the row at a token that ends it by none of pipegen's rules."""
        if reason == "abort":
            self.aborted = True
        elif reason == "error":
            self.fail(engine_failed("vllm", "vLLM ended the row with an error", scope="row"))
        else:
            self.fail(
                MalformedResponse(
                    f"vLLM ended the row as {reason!r} after {len(self.token_ids)} tokens, where"
                    " nothing ends it"
                )
            )

    def slot(self) -> Slot[Raw]:
        """The finished row's answer. Where a form is too large for vLLM's library, it lets the
        answer end anywhere, and says so in its log alone.
        """
        slot, ids = super().slot(), self.token_ids
        if (
            self.grammar is None
            or not is_ok(slot)
            or self.options.structured is None
            or self.fold.finish not in (Finish.EOS, Finish.STOP_TOKEN)
        ):
            return slot
        if ids[-1] not in self._ends or has_form(
            self.options.structured, self._tokenizer.decode(ids[:-1])
        ):
            return slot
        (name,) = form_of(self.options)
        return Failure(
            UnsupportedOption(
                f"vLLM ended the answer before it had its form: {name} is too large for it",
                option=name,
                hint=f"use a simpler {name}",
            )
        )


def scores_of(
    score_input: ScoreInput, tables: Sequence[Mapping[int, Any] | None] | None
) -> Slot[TokenScores]:
    """The scores of a continuation from vLLM's tables of the log probabilities of its whole prompt
    (id -> entry); the first token has none.

    The highest of each place is asked for too, so that a tie counts as greedy as it does on every
    engine: by its rank alone, vLLM would have neither of two equal tokens be the first. vLLM reads
    the contexts of such requests again, whatever its prefix cache holds.
    """
    ids = score_input.token_ids
    if tables is None or len(tables) != len(ids):
        seen = "no" if tables is None else len(tables)
        return malformed(f"vLLM gave {seen} log probabilities of a prompt of {len(ids)} tokens")
    pairs: list[tuple[float | None, list[Pair]]] = []
    for token, table in zip(
        score_input.continuation, tables[-len(score_input.continuation) :], strict=True
    ):
        values = {int(other): float(entry.logprob) for other, entry in (table or {}).items()}
        pairs.append((values.get(token), [*values.items()]))
    return scores_in(pairs, score_input.continuation, score_input.top).map(
        partial(token_scores, score_input)
    )
