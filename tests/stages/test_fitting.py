"""Preflight at its boundaries: what fits exactly, what does not by one, and what the errors
tell.
"""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

import pipegen as pg
from pipegen.core.errors import (
    InvalidRequest,
    PluginFailed,
    PromptTooLong,
    UnsupportedMultimodal,
    UnsupportedOption,
    UnsupportedPlugin,
)
from pipegen.core.slots import Slot, is_ok
from pipegen.engines.capabilities import ENGINES, Capabilities
from pipegen.engines.plugin import Plugin
from pipegen.records.engine_list import shown
from pipegen.records.option_groups import StopOptions, StructuredOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import GenerationRequest, TextGenerationRequest, VlmGenerationRequest
from pipegen.records.results import Encoded, Prompt, ResolvedRequest
from pipegen.stages.fitting import check_fit, check_ids, remaining_tokens
from pipegen.stages.resolving import check_support
from pipegen.testing.fake import FakeEngine

REQUEST = TextGenerationRequest(prompt="a")


def engine(context_length: int | None) -> Capabilities:
    return Capabilities(engine="toy", honours=ENGINES["hf"], context_length=context_length)


def fit(prompt_tokens: int, context_length: int | None, **options: Any) -> Slot[Encoded]:
    ids = (1,) * prompt_tokens
    encoded = Encoded(
        request=REQUEST,
        options=resolve(GenerationOptions(**options)),
        prompt=Prompt(token_ids=ids, compact_token_ids=ids),
    )
    return check_fit(encoded, engine(context_length))


def test_no_more_of_the_likeliest_tokens_than_the_model_has() -> None:
    known = dataclasses.replace(engine(None), vocab_size=9)
    encoded = fit(1, None, top_logprobs=9).unwrap()
    assert is_ok(check_fit(encoded, known))
    more = dataclasses.replace(encoded, options=resolve(GenerationOptions(top_logprobs=10)))
    assert is_ok(check_fit(more, engine(None)))
    error = check_fit(more, known).failure()
    assert isinstance(error, UnsupportedOption)
    assert (error.option, error.hint) == ("top_logprobs", "at most 9")


def wanted(slot: Slot[Encoded]) -> tuple[int | None, int | None]:
    return slot.unwrap().options.max_new_tokens, slot.unwrap().clipped_from


def test_where_nobody_sets_a_length_the_answer_may_fill_the_context() -> None:
    ids, fills = (1,) * 5, dataclasses.replace(engine(8), fills_context=True)
    encoded = Encoded(
        request=REQUEST,
        options=resolve(GenerationOptions()),
        prompt=Prompt(token_ids=ids, compact_token_ids=ids),
    )
    assert wanted(check_fit(encoded, fills)) == (3, None)
    said = dataclasses.replace(REQUEST, options=GenerationOptions(max_new_tokens=512))
    error = check_fit(dataclasses.replace(encoded, request=said), fills).failure()
    assert isinstance(error, PromptTooLong)


@pytest.mark.parametrize("context_length", [None, 8])
def test_an_empty_prompt_is_no_prompt(context_length: int | None) -> None:
    assert fit(0, context_length).failure() == InvalidRequest(
        "the prompt is empty: an engine needs at least one token"
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt": Prompt(token_ids=(1.0,), compact_token_ids=(1,))}, "no token ids, but float"),  # type: ignore[arg-type]
        ({"prompt": Prompt(token_ids=None, compact_token_ids=(1,))}, "no token ids, but NoneType"),  # type: ignore[arg-type]
        ({"options": GenerationOptions(temperature=1.0)}, "no value for max_new_tokens"),
    ],
)
@pytest.mark.parametrize("removed", [(), ("fit",)])
def test_what_a_stage_breaks_after_fit_fails_its_row_alone(
    change: dict[str, Any], words: str, removed: tuple[str, ...]
) -> None:
    def broken(encoded: Encoded) -> Encoded:
        return dataclasses.replace(encoded, **change) if encoded.prompt.text == "bad" else encoded

    pipe = pg.route(FakeEngine("ab")).insert(pg.pure("mine", broken), after="fit")
    for name in removed:
        pipe = pipe.remove(name)
    bad, good = pg.run(pipe, [{"prompt": "bad"}, {"prompt": "good"}])
    assert isinstance(bad.failure(), InvalidRequest)
    assert words in bad.failure().message
    assert good.unwrap().text == "ab"


def test_what_fits_exactly_is_left_as_it_is() -> None:
    assert wanted(fit(6, 8, max_new_tokens=2)) == wanted(fit(6, 9, max_new_tokens=2)) == (2, None)
    assert wanted(fit(10**6, None, max_new_tokens=2)) == (2, None)


@pytest.mark.parametrize(
    ("prompt_tokens", "least", "left"), [(5, 0, 3), (7, 0, 1), (7, 1, 1), (5, 3, 3), (6, 2, 2)]
)
# T7
def test_the_answer_is_clipped_down_to_one_token_or_to_what_it_must_have(
    prompt_tokens: int, least: int, left: int
) -> None:
    assert wanted(
        fit(prompt_tokens, 8, max_new_tokens=9, min_new_tokens=least, on_overflow="clip")
    ) == (left, 9)


@pytest.mark.parametrize(("prompt_tokens", "least"), [(5, 4), (7, 2), (6, 9)])
def test_no_answer_is_clipped_below_what_it_must_have(prompt_tokens: int, least: int) -> None:  # T7
    error = fit(
        prompt_tokens, 8, max_new_tokens=9, min_new_tokens=least, on_overflow="clip"
    ).failure()
    words = (
        f"the prompt has {prompt_tokens} tokens and at least {least} more are to be generated; the"
        " limit for both is 8"
    )
    assert error == PromptTooLong(
        prompt_tokens, 8, message=words, hint="shorten the prompt, or lower min_new_tokens"
    )


@pytest.mark.parametrize("on_overflow", ["error", "clip"])
@pytest.mark.parametrize("prompt_tokens", [8, 9])
# T7
def test_a_prompt_without_room_for_one_token_is_too_long(
    prompt_tokens: int, on_overflow: Any
) -> None:
    assert fit(
        prompt_tokens, 8, max_new_tokens=1, on_overflow=on_overflow
    ).failure() == PromptTooLong(prompt_tokens, 8, hint="shorten the prompt")


@pytest.mark.parametrize("context_length", [None, 4, 5])
def test_ones_own_limit_is_named_where_it_is_the_lower_or_the_same(
    context_length: int | None,
) -> None:
    error = fit(5, context_length, max_new_tokens=1, max_prompt_tokens=4).failure()
    assert error == PromptTooLong(5, 4, hint="shorten the prompt, or raise max_prompt_tokens")
    assert wanted(fit(4, 5, max_new_tokens=1, max_prompt_tokens=4)) == (1, None)


def test_what_the_prompt_leaves_of_the_context_remains() -> None:
    assert [
        remaining_tokens(tokens, engine(limit))
        for tokens, limit in ((3, 8), (8, 8), (9, 8), (9, None))
    ] == [5, 0, -1, None]


def test_a_refusal_names_the_plugin_and_its_reason() -> None:
    job = ResolvedRequest(request=REQUEST, options=resolve(GenerationOptions()))
    reasons = {"none": lambda request: None, "words": lambda request: "it is short"}
    plugins = tuple(Plugin(name=name, refuses=reason) for name, reason in reasons.items())
    error = check_support(job, engine(None), plugins).failure()
    assert error == UnsupportedPlugin(
        "plugin 'words' does not fit this request: it is short", plugin="words"
    )
    curt = Plugin(name="curt", refuses=lambda request: True)  # type: ignore[arg-type, return-value]
    assert check_support(job, engine(None), (curt,)).failure() == PluginFailed(
        "plugin 'curt' refused with bool; refuses gives a reason or None", plugin="curt"
    )


def support(
    capabilities: Capabilities, request: GenerationRequest = REQUEST, **options: Any
) -> Slot[ResolvedRequest]:
    return check_support(
        ResolvedRequest(request=request, options=resolve(GenerationOptions(**options))),
        capabilities,
    )


def test_images_are_refused_with_the_reason_where_there_is_one() -> None:  # P7
    image = VlmGenerationRequest(prompt="?", images=[b"1", b"2", b"3"])
    assert support(
        Capabilities(engine="toy", honours=frozenset()), image
    ).failure() == UnsupportedMultimodal("toy takes no images")
    blind = Capabilities(engine="toy", honours=frozenset(), reason="it is text-only")
    assert support(blind, image).failure() == UnsupportedMultimodal(
        "toy takes no images: it is text-only"
    )
    two = Capabilities(engine="toy", honours=frozenset({"images"}), max_images=2)
    assert support(two, image).failure() == UnsupportedMultimodal(
        "toy takes at most 2 images in a request, and this one has 3"
    )
    assert is_ok(
        support(Capabilities(engine="toy", honours=frozenset({"images"}), max_images=3), image)
    )


SERVED = "hf, vllm, vllm_server, sglang_server, vllm_chat, sglang_chat"


@pytest.mark.parametrize(
    ("engine", "option", "hint"),
    [
        (
            "vllm",
            {"no_repeat_ngram_size": 2},
            "leave it out, or take an engine that honours it: hf",
        ),
        (
            "toy",
            {"structured": StructuredOptions(choice=("a",))},
            f"leave it out, or take an engine that honours it: {SERVED}",
        ),
        (
            "vllm_chat",
            {"preprocess": {"max_pixels": 9}},
            "leave it out, or take an engine that honours it: hf, vllm, vllm_server, sglang_server",
        ),
        (
            "vllm_chat",
            {"bad_words": ("no",)},
            (
                "leave it out, or take an engine that honours it: hf, vllm, vllm_server; or put the"
                " field into extra_body, where it means what the server makes of it"
            ),
        ),
        (
            "openai_chat",
            {"top_k": 2},
            (
                "set the dialect (vllm or sglang) where the server is one, put the field into"
                " extra_body as the server has it, or leave it out"
            ),
        ),
        (
            "openai_chat",
            {"no_repeat_ngram_size": 2},
            "leave it out, or take an engine that honours it: hf",
        ),
    ],
)
# C5
def test_an_option_is_refused_with_who_can(engine: str, option: dict[str, Any], hint: str) -> None:
    error = support(
        Capabilities(engine=engine, honours=ENGINES.get(engine, frozenset())), **option
    ).failure()
    assert isinstance(error, UnsupportedOption)
    assert error.hint == hint
    assert error.message.startswith(f"{shown(engine)} does not honour {error.option}=")


def test_an_option_that_nobody_honours_has_the_plain_hint() -> None:
    error = support(
        Capabilities(engine="hf", honours=frozenset()), no_repeat_ngram_size=2
    ).failure()
    assert error == UnsupportedOption(
        "Hugging Face transformers does not honour no_repeat_ngram_size=2",
        option="no_repeat_ngram_size",
    )


@pytest.mark.parametrize(
    ("ids", "stops"), [((1, 8), ()), ((8, 1), ()), ((-1,), ()), ((1,), (8,)), ((1,), (3, 9))]
)
def test_an_id_that_the_model_does_not_have_is_refused(
    ids: tuple[int, ...], stops: tuple[int, ...]
) -> None:
    options = resolve(GenerationOptions(stop=StopOptions(stop_token_ids=stops)))
    encoded = Encoded(
        request=REQUEST, options=options, prompt=Prompt(token_ids=ids, compact_token_ids=ids)
    )
    small = Capabilities(engine="toy", honours=ENGINES["hf"], vocab_size=8)
    error = check_fit(encoded, small).failure()
    assert isinstance(error, InvalidRequest)
    assert error.message.endswith("and the model has ids from 0 to 7")
    assert is_ok(check_fit(encoded, engine(None)))  # where the vocabulary is not known


def test_every_id_below_the_vocabulary_is_taken() -> None:
    encoded = Encoded(
        request=REQUEST,
        options=GenerationOptions(),
        prompt=Prompt(token_ids=(0, 7), compact_token_ids=(0, 7)),
    )
    assert check_ids(encoded, 8) is None


def test_the_ids_of_a_row_are_looked_at_once_and_those_of_a_changed_one_again() -> None:
    sized = Capabilities(engine="toy", honours=frozenset(), vocab_size=9, context_length=20)
    fake = FakeEngine("")
    fake.capabilities = sized
    stage: Any = pg.stages.fit(fake)
    row = fit(3, 20, max_new_tokens=2).unwrap()
    checked = stage.apply((pg.Success(row),))[0].unwrap()
    assert checked == row
    assert row.checked is None
    assert checked.checked == 9
    assert check_ids(checked, 9) is None
    assert check_ids(checked, 1) is not None  # of a smaller model
    ids = (1, 12)
    other = dataclasses.replace(checked, prompt=Prompt(token_ids=ids, compact_token_ids=ids))
    assert "id 12 at position 1" in str(check_ids(other, 9))
    stops = dataclasses.replace(checked.options, stop=pg.StopOptions(stop_token_ids=(12,)))
    assert "stop_token_ids holds id 12" in str(
        check_ids(dataclasses.replace(checked, options=stops), 9)
    )
    read = pickle.loads(pickle.dumps(checked))
    assert read.checked == 9
    assert pickle.loads(pickle.dumps(other)).checked is None
    with pytest.raises((TypeError, ValueError), match="checked"):  # from Python 3.13 on the first
        dataclasses.replace(other, checked=9)
    with pytest.raises(pg.UnknownField, match="checked"):
        Encoded(request=REQUEST, options=row.options, prompt=row.prompt, checked=9)  # type: ignore[call-arg]


def test_an_option_that_a_stage_took_the_value_of_is_named() -> None:
    def unset(resolved: ResolvedRequest) -> ResolvedRequest:
        return dataclasses.replace(
            resolved, options=dataclasses.replace(resolved.options, max_new_tokens=None)
        )

    engine = FakeEngine("a")
    route = pg.route(engine).insert(pg.pure("unset", unset), after="resolve")
    error = pg.run(route, [{"prompt": "Hi"}])[0].failure()
    assert isinstance(error, pg.InvalidRequest)
    assert "have no value for max_new_tokens" in error.message
    assert engine.calls == []
