"""lm-eval on any engine: an `LM` that generates with `pg.imap` and scores with `pg.score`.

Prompts are made as lm-eval's own `hf` model makes them (its tokenizer calls, its truncation from
the left, its cut at stop strings). So its tasks give the same numbers. Each prompt then goes to the
engine as token ids. Answers go to lm-eval's cache as they come (`--use_cache`), under the very
arguments that it looks for. With `job`, a folder, they are also kept by content, as those of any
job: model, options, prompt and continuation.

    from lm_eval import simple_evaluate
    from pipegen.evals.lm_eval import PipegenLM

    simple_evaluate(model=PipegenLM("Qwen/Qwen3-4B"), tasks=["gsm8k"])
    simple_evaluate(model=PipegenLM("Qwen/Qwen3-4B", backend="vllm_server",
        base_url="http://localhost:8000"), tasks=["gsm8k"])

On the command line: `pipegen lm-eval --model_args pretrained=Qwen/Qwen3-4B --tasks gsm8k`.
"""

# lm-eval need not be installed where types are checked.
# pyright: reportMissingImports=false

from __future__ import annotations

import hashlib
import logging
import os
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import (
    handle_stop_sequences,
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

import pipegen as pg
from pipegen.core.functional import partition_all, without_none
from pipegen.core.names import nearest
from pipegen.engines.settings import fields_of
from pipegen.records.option_table import OTHER_NAMES, names_in
from pipegen.records.parse_request import Request
from pipegen.stages.gather_samples import derive_seed

__all__ = ["PipegenLM"]

BATCH = {
    "hf": "batch_size",
    "vllm": "max_num_seqs",
    "vllm_server": "max_in_flight",
    "sglang_server": "max_in_flight",
}
"""The setting of each engine for how many rows run side by side."""
MAX_LENGTH = 2048
"""Where neither the caller nor the engine says how long a sequence may be, as lm-eval has it."""
WINDOW = 1024
"""Rows of one call that scores: after each, the answers are in the cache."""
_log = logging.getLogger("pipegen")
_DRAWING = names_in("temperature", "filter")
_TAKEN = (*_DRAWING, *names_in("tokens", "bias", "penalty", "repeats", "seed"), "min_new_tokens")
_TOKENIZER = (
    "the tokenizer is that of the checkpoint: leave it out, or put another one into the model's"
    " folder"
)
_SPREAD = (
    "leave it out; device_map=auto spreads a model over GPUs and memory, backend=vllm shares it by"
    " tensor_parallel_size"
)
_ARGUMENTS: Mapping[str, str] = {
    **dict.fromkeys(("peft", "lora_local_path"), "it is called adapter"),
    **dict.fromkeys(
        (
            "tokenizer",
            "use_fast_tokenizer",
            "tokenizer_mode",
            "tokenizer_revision",
            "tokenizer_backend",
            "tokenized_requests",
        ),
        _TOKENIZER,
    ),
    **dict.fromkeys(
        ("parallelize", "max_memory_per_gpu", "max_cpu_memory", "offload_folder", "tp_plan"),
        _SPREAD,
    ),
    **dict.fromkeys(
        ("autogptq", "gptqmodel", "quantization"),
        "a quantized checkpoint says itself how it is read: leave it out, or put it into"
        " engine_kwargs",
    ),
    **dict.fromkeys(
        ("softmax_dtype", "mixed_precision_dtype"),
        "dtype alone sets how the model computes: leave it out",
    ),
    **dict.fromkeys(
        ("truncation", "truncation_side"),
        "what is too long is cut from the left, as the hf model does by default: leave it out",
    ),
    **dict.fromkeys(("max_lora_rank", "swap_space"), "it goes into engine_kwargs of backend=vllm"),
    "delta": "add the delta to the weights first, and give their folder as pretrained",
    "gguf_file": "give the folder of a checkpoint in safetensors as pretrained",
    "subfolder": "give the folder itself as pretrained",
    "logits_cache": (
        "contexts that several continuations share are read once in any case: leave it out"
    ),
    "data_parallel_size": (
        "one engine runs in this process: leave it out, or ask a server with backend=vllm_server"
    ),
    "num_concurrent": "it is called max_in_flight",
    "max_retries": "it is called retries",
    "model": "it is called pretrained",
    "seed": "lm-eval's own --seed, or seed in gen_kwargs, says what is drawn: leave it out",
}
"""Arguments of lm-eval's other models, and what they are called here or why they are not."""


@register_model("pipegen")
class PipegenLM(TemplateLM):  # type: ignore[misc]  # lm-eval has no types
    """A route as lm-eval's model.

    pretrained: the model, a folder or a hub name or `embedded`; or a route through one engine that
    takes token ids. backend: `hf`, `vllm`, `vllm_server` or `sglang_server`; other arguments that
    are not named here are its settings (`dtype`, `base_url`, ...). batch_size: how many rows run
    side by side; `auto` leaves it to the engine. job: a folder in which answers and scores are
    kept; the same evaluation again goes on where it stopped, on any engine. max_length,
    max_gen_toks, add_bos_token, prefix_token_id, think_end_token, enable_thinking,
    chat_template_args: as lm-eval's `hf` has them.
    """

    def __init__(
        self,
        pretrained: Any,
        *,
        backend: str = "hf",
        batch_size: int | str | None = None,
        job: str | os.PathLike[str] | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        think_end_token: str | None = None,
        enable_thinking: bool | None = None,
        chat_template_args: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        size = (
            batch_size
            if isinstance(batch_size, int)
            else int(batch_size)
            if batch_size and batch_size.isdecimal()
            else max_batch_size
        )
        if isinstance(pretrained, pg.Route):
            if settings or size is not None:
                raise TypeError(
                    "a route has its settings already: leave out"
                    f" {', '.join(settings) or 'batch_size'}"
                )
            self.route = pretrained
        else:
            if backend not in BATCH:
                raise ValueError(
                    f"backend takes one of {', '.join(BATCH)}, which take token ids, not"
                    f" {backend!r}{nearest(str(backend), BATCH)}"
                )
            for name in settings:
                if name in _ARGUMENTS and name not in fields_of(backend):
                    raise pg.UnknownField(
                        f"{name} of lm-eval's other models has another name here, or none:"
                        f" {_ARGUMENTS[name]}"
                    )
            # what lm-eval's command says where nobody does: the first GPU, if there is one
            device_setting = (
                device if "device" in fields_of(backend) and device != "cuda:0" else None
            )
            engine_settings = {BATCH[backend]: size, "device": device_setting}
            self.route = getattr(pg.backends, backend)(
                pretrained, **without_none(engine_settings), **settings
            )
        engine: Any = self.route.engine
        raw = getattr(getattr(engine, "tokenizer", None), "raw", None)
        if raw is None:
            raise TypeError(
                f"the engine {engine.name!r} has no tokenizer of transformers, which lm-eval makes"
                " its prompts with"
            )
        self.engine, self.tokenizer = engine, raw
        self.max_gen_toks, self.add_bos_token, self.think_end_token = (
            max_gen_toks,
            add_bos_token,
            think_end_token,
        )
        self._max_length, self._prefix_token_id = max_length, prefix_token_id
        thinking = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        self.chat_template_args = {**(chat_template_args or {}), **thinking}
        self.batch_size = size
        self._job = None if job is None else Path(job)
        if self._job is not None:
            self._job.mkdir(exist_ok=True)

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        candidates = (
            self._prefix_token_id,
            self.tokenizer.bos_token_id,
            self.tokenizer.eos_token_id,
        )
        return int(next(token_id for token_id in candidates if token_id is not None))

    @property
    def max_length(self) -> int:
        """How many tokens prompt and answer may have together."""
        return int(self._max_length or self.engine.capabilities.context_length or MAX_LENGTH)

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes beside its results."""
        return {
            "model_identity": self.engine.identity,
            "model_engine": self.engine.name,
            "pipegen": pg.__version__,
        }

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """The few-shot turns and the question as text; without the system turn where the template
        takes none, as lm-eval's `hf` does.
        """
        from jinja2.exceptions import TemplateError

        def rendered(turns: Sequence[Mapping[str, str]]) -> str:
            ends = {
                "add_generation_prompt": add_generation_prompt,
                "continue_final_message": not add_generation_prompt,
            }
            return str(
                self.tokenizer.apply_chat_template(
                    [*turns], tokenize=False, **ends, **self.chat_template_args
                )
            )

        try:
            return rendered(chat_history)
        except TemplateError as refusal:
            _log.warning(
                "the chat template refused the conversation (%s): it is rendered without its system"
                " turn",
                refusal,
            )
            return rendered([turn for turn in chat_history if turn["role"] != "system"])

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """As lm-eval's `hf`: with the tokenizer's own BOS, unless the text begins with it."""
        if add_special_tokens is None:
            add_special_tokens = (
                False
                if has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id))
                else self.add_bos_token
            )
        return self._encoded(string, add_special_tokens)

    def _encoded(self, text: str, add_special_tokens: bool | None) -> list[int]:
        return [
            *self.tokenizer.encode(text, **without_none({"add_special_tokens": add_special_tokens}))
        ]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The answers, cut at their stop strings by lm-eval's own function."""
        eos = str(self.tokenizer.decode(self.eot_token_id, skip_special_tokens=False))
        argument_lists = [request.args for request in requests]
        prepared = [
            self._generation(context, gen_kwargs, eos) for context, gen_kwargs in argument_lists
        ]
        seeded_requests = _seeded([request for request, _ in prepared])
        answers = (
            pg.imap(self.route, seeded_requests)
            if self._job is None
            else pg.job(self.route, seeded_requests, self._job / "answers")
        )
        texts: list[str] = []
        for number, (arguments, (_, until), slot) in enumerate(
            zip(argument_lists, prepared, answers, strict=True)
        ):
            if not pg.is_ok(slot):
                raise _because(slot.failure(), f"request {number}: {arguments[0]!r:.200}")
            text = self.tokenizer.decode([*slot.unwrap().token_ids], skip_special_tokens=True)
            cut = postprocess_generated_text(text, until, self.think_end_token)
            self.cache_hook.add_partial("generate_until", arguments, cut)
            texts.append(cut)
        return texts

    def _generation(
        self, context: str, gen_kwargs: Mapping[str, Any], eos: str
    ) -> tuple[dict[str, Any], list[str]]:
        """The request, and the stop strings at which lm-eval cuts its text."""
        if not isinstance(gen_kwargs, dict):
            raise TypeError(f"generation arguments are a dict, not {type(gen_kwargs).__name__}")
        kwargs: dict[str, Any] = dict(normalize_gen_kwargs(gen_kwargs, self.max_gen_toks))
        until = handle_stop_sequences(kwargs.pop("until", None), eos=eos)
        room, sampled = kwargs.pop("max_gen_toks"), kwargs.pop("do_sample", False)
        unknown = sorted({*kwargs} - {*_TAKEN})
        if unknown:
            near = next(
                (
                    f"; did you mean {OTHER_NAMES[name]!r}?"
                    for name in unknown
                    if OTHER_NAMES.get(name) in _TAKEN
                ),
                nearest(unknown[0], _TAKEN),
            )
            raise ValueError(
                f"generation arguments {unknown} have no meaning here{near}; known are"
                f" {', '.join(_TAKEN)}"
            )
        if room >= self.max_length:
            raise ValueError(
                f"max_gen_toks is {room}, and the model takes {self.max_length} tokens in all"
            )
        sampling = (
            kwargs
            if sampled
            else {name: value for name, value in kwargs.items() if name not in _DRAWING}
        )
        ids = self._prompt_ids(context)[-(self.max_length - room) :]
        stops = [stop for stop in until if stop and stop != eos]
        options = {
            "max_new_tokens": room,
            "stop": stops,
            "stop_token_ids": [self.eot_token_id],
            **without_none(sampling),
        }
        return {"prompt_token_ids": ids, "options": options}, until

    def _prompt_ids(self, context: str) -> list[int]:
        """As lm-eval's `tok_batch_encode`: a BOS in the text is not doubled."""
        return self._encoded(
            context,
            (
                False
                if has_bos_prefix(context, getattr(self.tokenizer, "bos_token", None))
                else self.add_bos_token
            ),
        )

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **more: Any
    ) -> list[tuple[float, bool]]:
        """The sums and whether they are greedy, of contexts and continuations as ids; what is too
        long loses its beginning.
        """
        longest = self.max_length + 1
        longest = min(longest, getattr(self.engine, "longest_scored", None) or longest)

        def row(context: Sequence[int], continuation: Sequence[int]) -> Request:
            if not continuation or len(continuation) >= longest:
                raise ValueError(
                    f"a continuation of {len(continuation)} tokens cannot be scored: 1 to"
                    f" {longest - 1} can"
                )
            return {
                "prompt_token_ids": [*context][-(longest - len(continuation)) :],
                "continuation": [*continuation],
            }

        answers: list[tuple[float, bool]] = []
        for window in partition_all(WINDOW, requests):
            slots = self._scores(
                [row(context, continuation) for _, context, continuation in window]
            )
            for (arguments, _, _), slot in zip(window, slots, strict=True):
                if not pg.is_ok(slot):
                    raise _because(slot.failure(), f"request {len(answers)}: {arguments!r:.200}")
                scored = slot.unwrap()
                answer = (scored.logprob, scored.greedy)
                if arguments is not None:
                    self.cache_hook.add_partial("loglikelihood", arguments, answer)
                answers.append(answer)
        return answers

    def _scores(self, rows: Sequence[Request]) -> Sequence[pg.Slot[pg.Scored]]:
        if self._job is None:
            return pg.score(self.route, rows)
        with pg.job(pg.scoring(self.route), rows, self._job / "scores", in_flight=len(rows)) as job:
            return [*job]

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """The log likelihood of whole texts, in windows as lm-eval cuts them."""
        texts = [request.args for request in requests]
        windows = [[*self._windows(text)] for (text,) in texts]
        values = iter(
            self._loglikelihood_tokens([(None, *window) for window in chain.from_iterable(windows)])
        )
        sums: list[float] = []
        for text_arguments, text_windows in zip(texts, windows, strict=True):
            sums.append(sum(next(values)[0] for _ in text_windows))
            self.cache_hook.add_partial("loglikelihood_rolling", text_arguments, sums[-1])
        return sums

    def _windows(self, text: str) -> Iterator[tuple[list[int], list[int]]]:
        room = self.max_length
        if self.engine.longest_scored is not None:
            room = min(room, self.engine.longest_scored - 1)
        rolling: Iterable[Any] = get_rolling_token_windows(
            self.tok_encode(text), self.prefix_token_id, room, 1
        )
        return map(make_disjoint_window, rolling)


def _seeded(requests: Sequence[dict[str, Any]]) -> list[dict[str, object]]:
    """The requests, each of those that are sampled with a seed: the same after the same `--seed`,
    and another for each of several equal requests.
    """
    base, repeats = _seed(), Counter[str]()
    seeded: list[dict[str, Any]] = []
    for request in requests:
        ids, options = request["prompt_token_ids"], dict(request["options"])
        if (options.get("temperature") or 0) > 0:
            content = repr((ids, sorted(options.items())))
            own_seed = options.get("seed")
            options["seed"] = (
                _digest((base, ids, repeats[content]))
                if own_seed is None
                else derive_seed(own_seed, repeats[content])
            )
            repeats[content] += 1
        seeded.append({**request, "options": options})
    return seeded


def _digest(value: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:8], "big") >> 1


def _seed() -> int:
    """What lm-eval's `--seed` has set: torch's seed, from which its `hf` model draws; without
    torch, Python's.
    """
    torch: Any = sys.modules.get("torch")
    return _digest(random.getstate()) if torch is None else int(torch.initial_seed())


def _because(error: pg.GenerationError, request_words: str) -> pg.GenerationError:
    """The error of a request, which ends the evaluation: a score over the rest would be another
    score.
    """
    error.add_note(f"lm-eval needs every answer; this one failed: {request_words}")
    return error
