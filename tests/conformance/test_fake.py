"""The conformance suite over the scripted engine: the suite itself is held up by this, and must
fail where an engine breaks a promise.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
from returns.result import Success

import pipegen as pg
from pipegen.records.results import Encoded, Raw, TokenLogprob
from pipegen.testing import conformance
from pipegen.testing.fake import FakeEngine


def talk(encoded: Encoded) -> Sequence[int]:
    """Text that depends on the prompt and, where it is sampled, on the seed alone."""
    options = encoded.options
    salt = f"{encoded.prompt.compact_token_ids}{options.seed if options.temperature and options.temperature > 0.1 else ''}"
    digest = hashlib.sha256(salt.encode()).digest() * 8
    words = ("Monday ", "Tue", "sday, ", "Wednesday ", "1, ", "2, ", "🎈 ", "ä")
    ids = FakeEngine("").tokenizer.encode("".join(words[byte % 8] for byte in digest))
    banned = set(options.stop.stop_token_ids or ()) if options.stop else set()
    least = options.min_new_tokens or 0
    return [
        (token_id if token_id not in banned or step >= least else 45)
        for step, token_id in enumerate(ids)
    ]


class TalkingEngine(FakeEngine):
    """A scripted engine that also gives logprobs."""

    def _made(self, encoded: Encoded) -> Any:
        slot = super()._made(encoded)
        if not encoded.options.logprobs:
            return slot

        def told(raw: Raw) -> Raw:
            top = encoded.options.top_logprobs or 0
            entries = (
                TokenLogprob(
                    token_id=token_id,
                    logprob=-0.25,
                    top=((token_id, -0.25), (0, -1.0), (1, -2.0))[:top],
                )
                for token_id in raw.token_ids
            )
            return dataclasses.replace(raw, logprobs=tuple(entries))

        return slot.map(told)


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_an_engine_that_keeps_its_promises_passes(check: conformance.Check, model: Any) -> None:
    check(pg.route(model()))


@pytest.mark.parametrize("check", conformance.CHECKS, ids=lambda check: check.__name__)
def test_an_engine_of_few_capabilities_passes_by_refusing(
    check: conformance.Check, model: Any
) -> None:
    honours = frozenset(
        {
            *("token_ids", "temperature", "stop", "stop_token_ids", "ignore_eos"),
            *("enable_thinking", "control_tokens", "add_generation_prompt"),
        }
    )
    check(pg.route(model(honours)))


class Formal(TalkingEngine):
    """Says that it gives answers of every form, and does."""

    def __init__(self, script: Any) -> None:
        super().__init__(script, honours=pg.ENGINES["vllm"] - {"videos"})

    def _made(self, encoded: Encoded) -> Any:
        form = encoded.options.structured
        if form is None or form == pg.StructuredOptions():
            return super()._made(encoded)
        text = "no way" if form.choice else "aba-09xy" if form.regex else '"yes"'
        return Success(
            Raw(encoded=encoded, token_ids=(*self.tokenizer.encode(text), self.eos_token_ids[0]))
        )


def test_an_engine_that_forms_its_answers_passes() -> None:
    conformance.answers_have_the_form_that_was_asked(pg.route(Formal(talk)))


class Formless(Formal):
    """Says that it gives answers of every form, and does not."""

    def _made(self, encoded: Encoded) -> Any:
        return TalkingEngine._made(self, encoded)


class Masked(Formal):
    """Takes logprobs among the tokens that the form allows."""

    def _made(self, encoded: Encoded) -> Any:
        return (
            super()
            ._made(encoded)
            .map(
                lambda raw: dataclasses.replace(
                    raw,
                    logprobs=tuple(
                        TokenLogprob(token_id=token_id, logprob=0.0) for token_id in raw.token_ids
                    ),
                )
            )
        )


class Contagious(Formal):
    """Lets the form of one answer change those beside it."""

    def generate(self, inputs: Sequence[Encoded]) -> Any:
        slots = super().generate(inputs)
        formed = any(encoded.options.structured is not None for encoded in inputs)
        return [
            (
                slot.map(lambda raw: dataclasses.replace(raw, token_ids=raw.token_ids[1:]))
                if formed and encoded.options.structured is None
                else slot
            )
            for encoded, slot in zip(inputs, slots, strict=True)
        ]


class Drifting(TalkingEngine):
    """Says something else each time."""

    def _made(self, encoded: Encoded) -> Any:
        self.turn = getattr(self, "turn", 0) + 1
        return (
            super()
            ._made(encoded)
            .map(
                lambda raw: dataclasses.replace(
                    raw, token_ids=raw.token_ids[self.turn % 5 :], logprobs=None
                )
            )
        )


class Crowded(TalkingEngine):
    """Says less to each row the more rows there are."""

    def generate(self, inputs: Sequence[Encoded]) -> Any:
        slots = super().generate(inputs)
        return [
            slot.map(
                lambda raw: dataclasses.replace(raw, token_ids=raw.token_ids[len(inputs) - 1 :])
            )
            for slot in slots
        ]


class Reversed(TalkingEngine):
    """Gives the rows back in the wrong order."""

    def generate(self, inputs: Sequence[Encoded]) -> Any:
        made = [slot.unwrap() for slot in super().generate(inputs)]
        return [
            Success(dataclasses.replace(raw, encoded=encoded))
            for raw, encoded in zip(made[::-1], inputs, strict=True)
        ]


class Stuttering(TalkingEngine):
    """Streams something else than it generates."""

    def stream(self, inputs: Sequence[Encoded]) -> Any:
        events = list(super().stream(inputs))
        yield from events[1:]


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Drifting, conformance.effective_options_sent_again_give_the_same),
        (Crowded, conformance.rows_do_not_depend_on_their_batch),
        (Reversed, conformance.rows_do_not_depend_on_their_batch),
        (Reversed, conformance.order_is_kept_and_bad_rows_fail_alone),
        (Stuttering, conformance.streamed_text_is_the_batch_text),
        (Drifting, conformance.seeds_make_rows_repeatable),
        (TalkingEngine, conformance.logprobs_are_the_models_own),
        (Formless, conformance.answers_have_the_form_that_was_asked),
        (Contagious, conformance.answers_have_the_form_that_was_asked),
        (Masked, conformance.logprobs_beside_a_form_are_the_models_own),
    ],
)
def test_an_engine_that_breaks_a_promise_is_found_out(
    broken: type[TalkingEngine], check: conformance.Check
) -> None:
    script = (lambda encoded: [*talk(encoded)][:24]) if broken is not TalkingEngine else talk
    engine = broken(script)
    if broken is TalkingEngine:
        # forgets the logprobs
        engine._made = lambda encoded: FakeEngine._made(engine, encoded)  # type: ignore[method-assign]
    with pytest.raises((AssertionError, pg.ContractError)):
        check(pg.route(engine))


@pytest.mark.parametrize("script", [None, ["one", "two"], 3])
def test_a_script_that_is_neither_a_text_nor_a_function_is_refused(script: Any) -> None:
    with pytest.raises(TypeError, match="takes the text of every row, or a function"):
        FakeEngine(script)


def test_a_script_that_gives_neither_a_text_nor_ids_says_what_it_may_give() -> None:
    engine = FakeEngine(lambda _: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="returns a text, token ids or an error, not int"):
        pg.run(pg.route(engine), [{"prompt": "Hi"}])
