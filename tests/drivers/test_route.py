"""The whole way through one engine: what is found before the call, fallback, plugins, and what
results report.
"""

from __future__ import annotations

import gc
import pickle
from typing import Any

import pytest

import pipegen as pg
from pipegen.core.pipe import identity
from pipegen.engines.protocol import TextEngine, TokenEngine
from pipegen.records.results import Decoded, Encoded
from pipegen.testing.fake import FakeEngine, ToyRenderer

TEXT_ONLY = pg.ENGINES["hf"] - {"images"}


def chat(text: str = "Hi", **options: Any) -> pg.TextGenerationRequest:
    return pg.TextGenerationRequest(
        messages=[{"role": "user", "content": text}], options=pg.GenerationOptions(**options)
    )


def image(*images: bytes, **options: Any) -> pg.VlmGenerationRequest:
    return pg.VlmGenerationRequest(
        prompt="What?", images=images or (b"image",), options=pg.GenerationOptions(**options)
    )


def error_of(route: Any, request: Any) -> pg.GenerationError:
    return pg.run(route, [request])[0].failure()


def test_a_result_reports_what_was_done() -> None:
    engine = FakeEngine("answer<|im_end|> and more")
    result = pg.run(
        pg.route(engine), [pg.VlmGenerationRequest(id="7", prompt="What?", images=[b"a", b"b"])]
    )[0].unwrap()
    assert (result.id, result.text, result.raw_text, result.finish) == (
        "7",
        "answer",
        "answer<|im_end|>",
        pg.Finish.EOS,
    )
    assert (result.route, result.thinking, result.tried, result.clipped_from) == (
        "fake",
        "honoured",
        (),
        None,
    )
    assert result.prompt_tokens == len(result.prompt_token_ids)
    assert (
        result.completion_tokens
        == len(result.token_ids)
        == len(engine.tokenizer.encode("answer<|im_end|>"))
    )
    assert result.image_grid_thw == ((1, 2, 6), (1, 2, 6))
    assert len(set(result.image_digests)) == 2
    assert result.prompt_token_ids.count(engine.tokenizer.special_tokens["<|image_pad|>"]) == 6
    assert pickle.loads(pickle.dumps(result)) == result  # our own bytes


def test_a_row_is_finished_before_the_next_is_decoded() -> None:
    held: list[int] = []

    def count(text: str = "") -> str:
        # isinstance would ask proxies for their class
        held.append(sum(type(kept) is Decoded for kept in gc.get_objects()))
        return text

    route = pg.attach(pg.route(FakeEngine("answer<|im_end|>")), pg.Plugin(name="count", trim=count))
    count()
    assert all(map(pg.is_ok, pg.run(route, [chat(str(row)) for row in range(5)])))
    assert len(held) == 6
    assert max(held) - held[0] <= 2


def test_an_image_for_a_text_only_engine_fails_and_its_neighbours_go_on() -> None:  # P7, K1
    engine = FakeEngine("a", honours=TEXT_ONLY)
    slots = pg.run(pg.route(engine), [chat(), image(), chat()])
    assert [pg.is_ok(slot) for slot in slots] == [True, False, True]
    assert isinstance(slots[1].failure(), pg.UnsupportedMultimodal)
    assert "text-only" in slots[1].failure().message
    assert len(engine.calls[0]) == 2


def test_more_images_than_the_engine_takes_are_refused() -> None:
    route = pg.route(FakeEngine("a", max_images=1))
    assert isinstance(error_of(route, image(b"a", b"b")), pg.UnsupportedMultimodal)
    assert pg.is_ok(pg.run(route, [image(b"a")])[0])


def test_one_broken_image_among_32_costs_only_its_own_slot() -> None:  # B4
    engine = FakeEngine("a")
    requests = [image(b"broken" if row == 11 else f"image {row}".encode()) for row in range(32)]
    slots = pg.run(pg.route(engine), requests)
    assert [row for row, slot in enumerate(slots) if not pg.is_ok(slot)] == [11]
    assert slots[11].failure() == pg.BadImage(0)
    assert [len(call) for call in engine.calls] == [31]


def test_the_broken_one_of_a_requests_images_is_named_also_when_another_request_has_it_elsewhere() -> (
    None
):
    slots = pg.run(pg.route(FakeEngine("a")), [image(b"broken"), image(b"good", b"broken")])
    assert [slot.failure().index for slot in slots] == [0, 1]  # type: ignore[attr-defined]


def test_the_fallback_takes_exactly_the_image_slots_in_one_call() -> None:  # K2
    fast, safe = FakeEngine("fast", name="fast", honours=TEXT_ONLY), FakeEngine("safe", name="safe")
    slots = pg.run(
        pg.fallback(pg.route(fast), pg.route(safe), when=pg.UnsupportedMultimodal),
        [chat(), image(), chat(), image()],
    )
    results = [slot.unwrap() for slot in slots]
    assert [result.route for result in results] == ["fast", "safe", "fast", "safe"]
    assert [len(result.tried) for result in results] == [0, 1, 0, 1]
    assert isinstance(results[1].tried[0], pg.UnsupportedMultimodal)
    assert ([len(call) for call in fast.calls], [len(call) for call in safe.calls]) == ([2], [2])


def test_a_fallback_that_no_slot_needs_is_not_called() -> None:  # K2
    safe = FakeEngine("safe")
    pg.run(
        pg.fallback(pg.route(FakeEngine("fast")), pg.route(safe), when=pg.UnsupportedMultimodal),
        [chat()],
    )
    assert safe.calls == []


def test_both_routes_fail_and_the_history_is_kept() -> None:  # K4
    first = FakeEngine("a", honours=TEXT_ONLY)
    second = FakeEngine(
        "a", name="second", fault=pg.CallFailed(pg.BackendFailed("died", incident="i-1"))
    )
    error = error_of(
        pg.fallback(pg.route(first), pg.route(second), when=pg.UnsupportedMultimodal), image()
    )
    assert isinstance(error, pg.BackendFailed)
    assert [type(earlier) for earlier in error.earlier] == [pg.UnsupportedMultimodal]


def test_leaving_a_composed_pipe_releases_every_engine_once() -> None:
    first, second = FakeEngine("a"), FakeEngine("b")
    one = pg.route(first)
    with (
        pg.fallback(one, pg.route(second), when=pg.UnsupportedMultimodal) >> identity() as composed
    ):
        assert pg.is_ok(pg.run(composed, [chat()])[0])
    with one as entered:
        assert entered is one
    assert (first.closed, second.closed) == (2, 1)
    with pg.fallback(one, one, when=pg.Timeout):
        pass
    assert first.closed == 3


def test_an_option_that_the_engine_does_not_honour_fails_its_slot_before_the_call() -> None:  # C5
    engine = FakeEngine("a", honours=pg.ENGINES["hf"] - {"no_repeat_ngram_size"})
    slots = pg.run(
        pg.route(engine), [chat(no_repeat_ngram_size=3), chat(no_repeat_ngram_size=0), chat()]
    )
    error = slots[0].failure()
    assert isinstance(error, pg.UnsupportedOption)
    assert error.option == "no_repeat_ngram_size"
    assert error.hint == "leave it out, or take an engine that honours it: hf"
    assert [pg.is_ok(slot) for slot in slots[1:]] == [True, True]
    assert len(engine.calls[0]) == 2


def test_a_prompt_that_is_too_long_is_refused_before_the_call() -> None:  # T7, H4
    engine = FakeEngine("a", context_length=4)
    slots = pg.run(pg.route(engine), [pg.TextGenerationRequest(prompt_token_ids=[1] * 10)])
    assert slots[0].failure() == pg.PromptTooLong(10, 4)
    assert engine.calls == []


def test_prompt_and_answer_together_must_fit_or_are_clipped() -> None:  # T7
    engine = FakeEngine("abcdefghijkl", context_length=12)
    ids = pg.TextGenerationRequest(prompt_token_ids=[1] * 10)
    error = pg.run(pg.route(engine), [ids], pg.GenerationOptions(max_new_tokens=3))[0].failure()
    assert isinstance(error, pg.PromptTooLong)
    assert (error.prompt_tokens, error.limit) == (10, 12)
    assert "3 more" in error.message
    assert (
        pg.run(pg.route(engine), [ids], pg.GenerationOptions(max_new_tokens=2))[0]
        .unwrap()
        .clipped_from
        is None
    )
    clipped = pg.run(
        pg.route(engine), [ids], pg.GenerationOptions(max_new_tokens=3, on_overflow="clip")
    )[0].unwrap()
    assert (clipped.completion_tokens, clipped.clipped_from, clipped.options.max_new_tokens) == (
        2,
        3,
        2,
    )
    least = pg.GenerationOptions(max_new_tokens=4, min_new_tokens=3, on_overflow="clip")
    lacking = pg.run(pg.route(engine), [ids], least)[0].failure()
    assert isinstance(lacking, pg.PromptTooLong)
    assert (
        lacking.message
        == "the prompt has 10 tokens and at least 3 more are to be generated; the limit for both"
        " is 12"
    )
    assert lacking.hint == "shorten the prompt, or lower min_new_tokens"


@pytest.mark.parametrize(
    ("prompt", "words", "hint"),
    [
        (9, "the prompt has 9 tokens; the limit is 8", "shorten the prompt"),
        (
            8,
            "the prompt has 8 tokens and leaves no room for an answer; the limit for both is 8",
            "shorten the prompt",
        ),
        (
            7,
            "the prompt has 7 tokens and up to 2 more are to be generated; the limit for both is 8",
            pg.PromptTooLong.default_hint,
        ),
    ],
)
def test_what_is_advised_would_help(prompt: int, words: str, hint: str) -> None:  # T7
    error = error_of(
        pg.route(FakeEngine("a", context_length=8)),
        {"prompt": "x" * prompt, "options": {"max_new_tokens": 2}},
    )
    assert (error.message, error.hint) == (words, hint)


def test_a_limit_of_the_callers_own_is_kept_before_the_call_whatever_the_model_takes() -> None:
    engine = FakeEngine("a", context_length=1_000)
    requests = [{"prompt": "x" * count} for count in (3, 4, 5)]
    slots = pg.run(
        pg.route(engine), requests, pg.GenerationOptions(max_prompt_tokens=4, on_overflow="clip")
    )
    assert [pg.is_ok(slot) for slot in slots] == [True, True, False]
    assert slots[2].failure() == pg.PromptTooLong(
        5, 4, hint="shorten the prompt, or raise max_prompt_tokens"
    )
    assert [len(call) for call in engine.calls] == [2]
    assert slots[0].unwrap().options.max_prompt_tokens == 4


def test_a_limit_above_the_models_leaves_the_models_in_force() -> None:
    route = pg.route(FakeEngine("a", context_length=4))
    request = {"prompt": "x" * 9, "options": {"max_prompt_tokens": 5}}
    assert error_of(route, request) == pg.PromptTooLong(9, 4)


def test_ids_outside_the_vocabulary_are_refused() -> None:  # H10
    engine = FakeEngine("a")
    assert isinstance(
        error_of(
            pg.route(engine),
            pg.TextGenerationRequest(prompt_token_ids=[engine.tokenizer.vocab_size]),
        ),
        pg.InvalidRequest,
    )
    assert isinstance(error_of(pg.route(engine), {"prompt": ""}), pg.InvalidRequest)


def test_a_template_that_raises_fails_its_slot_and_was_called_once() -> None:  # T2
    renderer = ToyRenderer(raises=TypeError("unexpected keyword"))
    engine = FakeEngine("a", renderer=renderer)
    slots = pg.run(pg.route(engine), [chat(), {"prompt": "plain"}])
    assert isinstance(slots[0].failure(), pg.TemplateFailed)
    assert pg.is_ok(slots[1])


def test_the_checkpoints_settings_are_used_when_asked() -> None:
    engine = FakeEngine("a", generation_config={"do_sample": True, "temperature": 0.6, "top_k": 20})
    asked, plain = (
        slot.unwrap().options
        for slot in pg.run(pg.route(engine), [chat(use_generation_config=True), chat()])
    )
    assert (asked.temperature, asked.top_k, plain.temperature, plain.top_k) == (0.6, 20, 0.0, 0)


def test_each_row_gets_its_own_options_in_one_call() -> None:  # B8
    engine = FakeEngine("one two STOP three")
    slots = pg.run(
        pg.route(engine),
        [
            chat(max_new_tokens=3),
            chat(stop=pg.StopOptions(stop=("STOP",))),
            chat(stop=pg.StopOptions(stop=(" ",))),
            chat(),
        ],
    )
    assert [slot.unwrap().text for slot in slots] == [
        "one",
        "one two ",
        "one",
        "one two STOP three",
    ]
    assert len(engine.calls) == 1


def test_an_engine_that_overshoots_gives_the_same_results_as_one_that_halts() -> None:
    requests = [chat(stop=pg.StopOptions(stop=("STOP",))), chat(max_new_tokens=4), chat()]
    halting, overshooting = (
        FakeEngine("a STOP b<|im_end|>c"),
        FakeEngine("a STOP b<|im_end|>c", server_side_stops=False),
    )
    assert pg.run(pg.route(halting), requests) == pg.run(pg.route(overshooting), requests)


def test_equal_prompts_of_a_batch_are_rendered_once_and_different_ones_apart() -> None:
    engine = FakeEngine("a")
    pg.run(
        pg.route(engine),
        [
            chat("a", seed=1),
            chat("a", seed=2),
            chat("b"),
            chat("a", chat=pg.ChatTemplateOptions(enable_thinking=True)),
        ],
    )
    assert len({id(encoded.prompt) for encoded in engine.calls[0]}) == 3


def test_several_plugins_are_attached_in_order_or_none_is() -> None:
    shout, mark = (
        pg.Plugin(name="shout", trim=str.upper),
        pg.Plugin(name="mark", trim=lambda text: f"{text}!x"),
    )
    for order, text in (((shout, mark), "A!x"), ((mark, shout), "A!X"), ((), "a")):
        assert (
            pg.run(pg.attach(pg.route(FakeEngine("a")), *order), [chat()])[0].unwrap().text == text
        )
    deaf = pg.route(FakeEngine("a", honours=pg.ENGINES["hf"] - {"watch"}))
    with pytest.raises(pg.UnsupportedPlugin) as raised:
        pg.attach(deaf, shout, pg.plugins.balanced_json(), mark)
    refused = raised.value
    assert isinstance(refused, pg.UnsupportedPlugin)
    assert refused.plugin == "balanced_json"


def test_the_same_plugin_is_attached_once() -> None:
    shout, json = pg.Plugin(name="shout", trim=str.upper), pg.plugins.balanced_json()
    route = pg.route(FakeEngine("a"))
    attached = pg.attach(route, shout, json)
    safe = pg.fallback(attached, pg.route(FakeEngine("b", name="other")), when=pg.Timeout)
    for to, plugins in (
        (route, (shout, shout)),
        (attached, (shout,)),
        (safe, (shout,)),
        (route, (shout, pg.Plugin(name="shout", trim=str.upper))),
        (attached, (pg.plugins.balanced_json(),)),
    ):
        with pytest.raises(pg.UnsupportedPlugin, match=r"is attached to .* already"):
            pg.attach(to, *plugins)
    others = (
        pg.plugins.strip_prefix(["A:"]),
        pg.plugins.strip_prefix(["B:"]),
        pg.Plugin(name="own", trim=str.upper),
        pg.Plugin(name="own", trim=str.lower),
    )
    assert len(pg.attach(route, *others).engine.plugins) == 4


def test_attach_compares_capabilities_before_any_call() -> None:  # K3
    engine = FakeEngine("a", name="served")
    with pytest.raises(pg.UnsupportedPlugin) as raised:
        pg.attach(pg.route(engine), pg.Plugin(name="bias", logits_processor=lambda context: None))
    refused = raised.value
    assert isinstance(refused, pg.UnsupportedPlugin)
    assert (refused.plugin, "logits_processor" in refused.message) == ("bias", True)
    assert engine.calls == []


def test_plugins_trim_in_their_order_and_share_the_engine() -> None:  # A11
    engine = FakeEngine(" abc ")
    bare = pg.route(engine)
    one = pg.attach(bare, pg.Plugin(name="bracket", trim=lambda text: f"[{text}]"))
    both = pg.attach(one, pg.Plugin(name="shout", trim=str.upper))
    options = pg.GenerationOptions(decode=pg.DecodeOptions(strip_whitespace=True))
    assert [pg.run(route, [chat()], options)[0].unwrap().text for route in (bare, one, both)] == [
        "abc",
        "[abc]",
        "[ABC]",
    ]
    assert len(engine.calls) == 3


def test_a_plugin_that_does_not_fit_one_request_fails_that_slot_only() -> None:
    plugin = pg.Plugin(
        name="text", refuses=lambda request: "it has images" if request.sources else None
    )
    route = pg.attach(pg.route(FakeEngine("a")), plugin)
    slots = pg.run(route, [chat(), image()])
    assert pg.is_ok(slots[0])
    assert isinstance(slots[1].failure(), pg.UnsupportedPlugin)


def test_a_plugin_that_raises_or_gives_no_text_fails_its_row_only() -> None:  # A11
    def trim(text: str) -> Any:
        if text == "raise":
            raise ValueError("no")
        return 3 if text == "number" else text

    def script(encoded: Encoded) -> str:
        return encoded.request.id or ""

    route = pg.attach(pg.route(FakeEngine(script)), pg.Plugin(name="picky", trim=trim))
    slots = pg.run(route, [{"id": word, "prompt": "x"} for word in ("fine", "raise", "number")])
    assert slots[0].unwrap().text == "fine"
    assert [(type(slot.failure()), slot.failure().plugin) for slot in slots[1:]] == [
        (pg.PluginFailed, "picky")
    ] * 2  # type: ignore[attr-defined]


def test_a_watching_plugin_halts_the_row_and_is_named() -> None:
    def feed(seen: str, new: str) -> tuple[str, int | None]:
        place = new.find("!")
        return seen + new, None if place < 0 else place + 1

    engine = FakeEngine("one! two")
    route = pg.attach(pg.route(engine), pg.Plugin(name="bang", start=str, feed=feed))
    result = pg.run(route, [chat()])[0].unwrap()
    assert (result.text, result.finish, result.stop, result.raw_text) == (
        "one!",
        pg.Finish.PLUGIN,
        "bang",
        "one!",
    )


@pytest.mark.parametrize("stop", ["<|im_end|>", "<|endoftext|>"])
def test_a_stop_that_is_a_special_token_is_named_and_invisible(stop: str) -> None:  # A9
    result = pg.run(
        pg.route(FakeEngine(f"clean{stop}x", eos_tokens=())),
        [chat(stop=pg.StopOptions(stop=(stop,)))],
    )[0].unwrap()
    assert (result.text, result.raw_text, result.finish, result.stop) == (
        "clean",
        f"clean{stop}",
        pg.Finish.STOP_TOKEN,
        stop,
    )


def test_a_stop_that_begins_in_the_prompt_does_not_match() -> None:  # A14
    result = pg.run(
        pg.route(FakeEngine("OP and on<|im_end|>")),
        [pg.TextGenerationRequest(prompt="ST", options=pg.GenerationOptions(stop=("STOP",)))],
    )[0].unwrap()
    assert (result.text, result.finish, result.stop) == ("OP and on", pg.Finish.EOS, None)


def test_tokens_are_counted_without_calling_the_engine() -> None:  # T7
    engine = FakeEngine("a", context_length=5)
    route = pg.route(engine)
    assert (
        pg.count_tokens(route, pg.TextGenerationRequest(prompt_token_ids=[1] * 10)).unwrap() == 10
    )
    with_image = pg.run(pg.route(FakeEngine("a")), [image()])[0].unwrap()
    assert pg.count_tokens(route, image()).unwrap() == with_image.prompt_tokens
    assert isinstance(pg.count_tokens(route, {"messages": []}).failure(), pg.InvalidRequest)
    asked = {"messages": [{"role": "user", "content": "Hi"}]}
    assert (
        pg.count_tokens(route, asked, {"chat": {"enable_thinking": True}}).unwrap()
        < pg.count_tokens(route, asked).unwrap()
    )
    assert engine.calls == []


@pytest.mark.parametrize("raised", [ValueError("no"), KeyError("x"), RuntimeError("later")])
def test_a_plugin_whose_refusal_raises_fails_that_row_only(raised: Exception) -> None:  # A11
    def refuses(request: pg.GenerationRequest) -> str | None:
        if request.id == "b":
            raise raised
        return None

    engine = FakeEngine("a")
    route = pg.attach(pg.route(engine), pg.Plugin(name="picky", refuses=refuses))
    good, bad = pg.run(route, [{"id": "a", "prompt": "x"}, {"id": "b", "prompt": "x"}])
    assert good.unwrap().text == "a"
    error = bad.failure()
    assert isinstance(error, pg.PluginFailed)
    assert (error.plugin, error.message) == (
        "picky",
        f"plugin 'picky' raised {type(raised).__name__}: {raised}",
    )
    assert len(engine.calls[0]) == 1


@pytest.mark.parametrize("answer", [False, True, 3, b"no"])
def test_a_plugin_refuses_in_words_or_not_at_all(answer: Any) -> None:
    route = pg.attach(
        pg.route(FakeEngine("a")), pg.Plugin(name="curt", refuses=lambda request: answer)
    )
    error = pg.run(route, [chat()])[0].failure()
    assert isinstance(error, pg.PluginFailed)
    assert (
        error.message
        == f"plugin 'curt' refused with {type(answer).__name__}; refuses gives a reason or None"
    )


class Unreadable(FakeEngine):
    """Its model cannot be read."""

    def __init__(self, raised: Exception) -> None:
        super().__init__("never")
        self._raised = raised

    @property
    def bos_token(self) -> str | None:  # type: ignore[override]
        raise self._raised

    @bos_token.setter
    def bos_token(self, value: str | None) -> None:
        """The plain engine sets its own."""


@pytest.mark.parametrize(
    "raised",
    [
        pg.CallFailed(pg.BackendFailed("no such model", backend="fake")),
        pg.InvalidField("no such model"),
    ],
)
def test_a_model_that_cannot_be_read_fails_every_live_slot_alike_and_a_fallback_takes_over(
    raised: Exception,
) -> None:
    engine = Unreadable(raised)
    early = pg.Failure(pg.InvalidRequest("before"))
    slots = pg.run(pg.route(engine), [{"prompt": "a"}, early, {"prompt": "b"}])
    assert [type(slot.failure()) for slot in slots] == [
        pg.BackendFailed,
        pg.InvalidRequest,
        pg.BackendFailed,
    ]
    assert slots[0].failure() == slots[2].failure()
    assert (slots[0].failure().message, slots[0].failure().backend) == ("no such model", "fake")
    both = pg.fallback(pg.route(engine), pg.route(FakeEngine("well")), when=pg.BackendFailed)
    assert pg.run(both, [{"prompt": "a"}])[0].unwrap().text == "well"
    assert pg.run(pg.route(engine), [early]) == (early,)  # with nothing to do, nothing is read


def test_a_plugin_is_not_attached_to_a_model_that_cannot_be_read() -> None:
    class Blind(FakeEngine):
        @property
        def capabilities(self) -> Any:  # type: ignore[override]
            raise pg.CallFailed(pg.BackendFailed("no such model"))

        @capabilities.setter
        def capabilities(self, value: Any) -> None:
            """The plain engine sets its own."""

    with pytest.raises(pg.BackendFailed, match="no such model"):
        pg.attach(pg.route(Blind("")), pg.plugins.balanced_json())


MEMBERS = [
    *("bos_token", "capabilities", "close", "eos_token_ids", "generation_config", "identity"),
    *("image_placeholder", "plugins", "prepare_image", "renderer", "tokenizer", "with_plugin"),
]


def without(name: str) -> Any:
    """An engine that has everything but that."""
    members = {one: None for one in MEMBERS if one != name}
    return type("Own", (), {"name": "own", "generate": lambda self, inputs: [], **members})()


@pytest.mark.parametrize("name", MEMBERS)
def test_an_engine_that_has_not_all_of_its_protocol_is_refused_by_the_name(name: str) -> None:
    words = rf"the engine 'own' \(Own\) has no {name}: .*TokenEngine"
    for bind in (pg.route, pg.stages.render, pg.stages.decode):
        with pytest.raises(TypeError, match=words):
            bind(without(name))


def test_all_that_the_protocol_of_engines_lists_is_asked_for() -> None:
    listed = {name for name in dir(TokenEngine) if not name.startswith("_")}
    assert listed == {*MEMBERS, "name", "generate"}
    text = {name for name in dir(TextEngine) if not name.startswith("_")}
    own = {"name", "generate", "resolve", "result"}
    for name in sorted(text - own):
        members = dict.fromkeys(text - {name})
        engine: Any = type("Own", (), {**members, "name": "own", "generate": print})()
        with pytest.raises(TypeError, match=f"has no {name}: .*TextEngine"):
            pg.route(engine)
