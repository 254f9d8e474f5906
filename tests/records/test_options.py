"""Options: what is refused, and how every option gets its value."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
from typing import Any

import pytest
from immutabledict import immutabledict

from pipegen.core.names import InvalidField
from pipegen.records import strict_json
from pipegen.records.engine_list import ENGINE_LIST
from pipegen.records.fields import UnknownField
from pipegen.records.option_groups import (
    GROUPS,
    ChatTemplateOptions,
    DecodeOptions,
    StopOptions,
    StructuredOptions,
    VlmPreprocessOptions,
)
from pipegen.records.option_records import GenerationOptions
from pipegen.records.option_table import DEFAULTS, OPTIONS, OTHER_NAMES, Wire, wire_fields
from pipegen.records.options import flat_values, merge, option_names, options_from, resolve


@pytest.mark.parametrize(
    "make", [lambda: GenerationOptions(temprature=0.2), lambda: options_from({"temprature": 0.2})]
)  # type: ignore[call-arg]
def test_an_unknown_option_is_refused_and_the_nearest_named(make: Any) -> None:  # C1
    with pytest.raises(UnknownField, match="did you mean 'temperature'"):
        make()


@pytest.mark.parametrize("values", ["x", 3, [1]])
def test_options_that_are_no_object_are_refused(values: Any) -> None:
    with pytest.raises(
        InvalidField, match=f"line 3: options are an object, not {type(values).__name__}"
    ):
        options_from(values, "line 3")


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("temperature", -1, "at least 0"),
        ("temperature", float("nan"), "at least 0"),
        ("temperature", float("inf"), "at least 0"),
        ("temperature", True, "at least 0"),
        ("top_p", 0, "above 0 and at most 1"),
        ("top_p", 5, "above 0 and at most 1"),
        ("repetition_penalty", 0, "above 0"),
        ("max_new_tokens", True, "whole number of at least 0"),
        ("max_new_tokens", 12.9, "whole number of at least 0"),
        ("max_new_tokens", -1, "whole number of at least 0"),
        ("seed", "x", "whole number"),
        ("seed", -1, "whole number"),
        ("top_k", -1, "at least 0"),
        ("logprobs", 1, "True or False"),
        ("on_overflow", "cut", "'error', 'clip'"),
        ("stop", "END", "tuple of stop strings"),
        ("adapter", 3, "the name of an adapter"),
        ("decode", 3, "DecodeOptions"),
    ],
)
# C2
def test_a_bad_value_is_refused_with_the_fields_name_and_what_it_takes(
    name: str, value: Any, takes: str
) -> None:
    with pytest.raises(InvalidField, match=f"GenerationOptions.{name} takes .*{takes}"):
        GenerationOptions(**{name: value})


@pytest.mark.parametrize("stop", ["END", ("END", ""), ("END", 3), 3])
def test_a_bad_stop_is_refused(stop: Any) -> None:  # A4
    with pytest.raises(InvalidField, match=r"StopOptions\.stop takes|tuple of stop strings"):
        StopOptions(stop=stop)


def test_the_position_of_a_bad_stop_is_named() -> None:  # A4
    with pytest.raises(InvalidField, match="at position 1"):
        StopOptions(stop=("END", ""))
    with pytest.raises(InvalidField, match="at position 2"):
        GenerationOptions(stop=("a", "b", None))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "9"])
@pytest.mark.parametrize("name", ["min_pixels", "max_pixels"])
def test_pixel_budgets_are_whole_and_positive(name: str, value: Any) -> None:  # P2
    with pytest.raises(InvalidField, match=name):
        VlmPreprocessOptions(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("json_schema", "{", "a JSON Schema as a mapping or as JSON text"),
        ("json_schema", "[]", "a JSON Schema as a mapping or as JSON text"),
        ("json_schema", {"a": float("nan")}, "NaN is not a number"),
        ("json_schema", {"a": object()}, "plain data"),
        ("json_schema", True, "a JSON Schema"),
        ("regex", "", "a string that is not empty"),
        ("choice", "yes", "a tuple or a list"),
        ("choice", (), "at least one text"),
        ("choice", ("yes", ""), "at position 1"),
    ],
)
def test_a_bad_form_is_refused(name: str, value: Any, takes: str) -> None:
    with pytest.raises(InvalidField, match=f"StructuredOptions.{name} takes .*{takes}"):
        StructuredOptions(**{name: value})


def test_a_schema_is_kept_as_text_with_its_properties_in_order() -> None:
    one, other = (
        {"properties": {name: {"type": "null"} for name in names}} for names in ("ab", "ba")
    )
    assert StructuredOptions(json_schema=one) != StructuredOptions(json_schema=other)
    kept = StructuredOptions(json_schema=one).json_schema
    assert kept == '{"properties": {"a": {"type": "null"}, "b": {"type": "null"}}}'
    assert StructuredOptions(json_schema=kept) == StructuredOptions(json_schema=one)
    exact = '{"const": 0.12345678901234567890}'
    assert StructuredOptions(json_schema=f" {exact}\n").json_schema == exact
    effective = [
        resolve(GenerationOptions(structured=StructuredOptions(json_schema=schema))).structured
        for schema in (one, other)
    ]
    assert effective[0] != effective[1]


def test_the_form_of_the_answer_is_one_setting() -> None:
    with pytest.raises(InvalidField, match="choice and tool_choice, not regex and choice"):
        StructuredOptions(regex="a", choice=("b",))
    with pytest.raises(InvalidField, match="one of json_schema, regex, choice and tool_choice"):
        options_from({"regex": "a", "structured": {"json_schema": {}}})
    request, of_run = (
        GenerationOptions(structured=StructuredOptions(regex="a")),
        GenerationOptions(structured=StructuredOptions(choice=("b",))),
    )
    assert resolve(request, of_run).structured == StructuredOptions(regex="a")
    assert resolve(
        GenerationOptions(structured=StructuredOptions()), of_run
    ).structured == StructuredOptions(choice=("b",))


def test_contradictions_are_refused_at_construction() -> None:  # P2, T10
    with pytest.raises(InvalidField, match="min_pixels of at most max_pixels"):
        VlmPreprocessOptions(min_pixels=10, max_pixels=9)
    with pytest.raises(InvalidField, match="not both"):
        ChatTemplateOptions(continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(InvalidField, match="top_logprobs only with"):
        GenerationOptions(logprobs=False, top_logprobs=2)
    with pytest.raises(InvalidField, match="min_new_tokens of at most"):
        GenerationOptions(min_new_tokens=5, max_new_tokens=4)


def test_numbers_are_kept_as_floats_and_words_in_lower_case() -> None:
    options = GenerationOptions(temperature=1, on_overflow="CLIP")  # type: ignore[arg-type]
    assert isinstance(options.temperature, float)
    assert options.on_overflow == "clip"


def test_records_are_immutable_hashable_picklable_and_equal_by_value() -> None:  # C4
    options = GenerationOptions(
        stop=StopOptions(stop=("a",)),
        chat=ChatTemplateOptions(template_kwargs={"a": [1, {"b": 2}]}),
    )
    assert options.chat is not None
    assert options.chat.template_kwargs is not None
    for twin in (pickle.loads(pickle.dumps(options)), copy.deepcopy(options)):  # our own bytes
        assert twin == options
        assert hash(twin) == hash(options)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.seed = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        options.chat.template_kwargs["a"] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        options.chat.template_kwargs["a"][1]["b"] = 3  # pyright: ignore[reportIndexIssue]


def test_records_do_not_see_what_the_caller_does_to_its_own_values_later() -> None:  # C4
    kwargs = {"a": [1]}
    options = ChatTemplateOptions(template_kwargs=kwargs)
    kwargs["a"].append(2)
    assert options.template_kwargs == {"a": (1,)}


@pytest.mark.parametrize("value", [{1: "a"}, {"a": object()}, [1]])
def test_template_variables_are_plain_data(value: Any) -> None:
    with pytest.raises(InvalidField, match="template_kwargs takes"):
        ChatTemplateOptions(template_kwargs=value)


def test_what_the_request_says_wins_over_the_run_and_that_over_the_defaults() -> None:
    request = GenerationOptions(temperature=0.7, stop=StopOptions(stop=("a",)))
    of_run = GenerationOptions(
        temperature=0.1, seed=3, stop=StopOptions(stop=("b",), stop_token_ids=(4,))
    )
    options = resolve(request, of_run)
    assert (options.temperature, options.seed, options.top_p) == (0.7, 3, 1.0)
    assert options.stop == StopOptions(stop=("a",), stop_token_ids=(4,), ignore_eos=False)


def test_the_checkpoints_settings_count_only_when_asked() -> None:
    checkpoint = immutabledict(
        {
            "do_sample": True,
            "temperature": 0.6,
            "top_k": 20,
            "repetition_penalty": 1.1,
            "eos_token_id": 3,
        }
    )
    assert resolve(GenerationOptions(), checkpoint=checkpoint).temperature == 0.0
    asked = resolve(GenerationOptions(use_generation_config=True, top_k=5), checkpoint=checkpoint)
    assert (asked.temperature, asked.top_k, asked.repetition_penalty) == (0.6, 5, 1.1)
    assert (
        resolve(
            GenerationOptions(use_generation_config=True), checkpoint=immutabledict(temperature=0.6)
        ).temperature
        == 0.0
    )
    assert (
        resolve(
            GenerationOptions(use_generation_config=True), checkpoint=immutabledict(do_sample=True)
        ).temperature
        == 1.0
    )


def test_effective_options_sent_again_are_the_same() -> None:  # C8
    checkpoint = immutabledict({"do_sample": True, "temperature": 0.6})
    for said in (
        GenerationOptions(),
        GenerationOptions(
            use_generation_config=True,
            seed=1,
            chat=ChatTemplateOptions(continue_final_message=True),
        ),
    ):
        effective = resolve(said, checkpoint=checkpoint)
        assert resolve(effective, checkpoint=checkpoint) == effective
        assert (
            options_from(
                {name: value for name, value in flat_values(effective).items() if value is not None}
            )
            == effective
        )


def test_of_the_two_switches_of_the_prompts_end_the_stronger_side_wins() -> None:
    continues = GenerationOptions(chat=ChatTemplateOptions(continue_final_message=True))
    adds = GenerationOptions(chat=ChatTemplateOptions(add_generation_prompt=True))
    first, second = resolve(continues, adds).chat, resolve(adds, continues).chat
    assert first is not None
    assert second is not None
    assert (first.continue_final_message, first.add_generation_prompt) == (True, False)
    assert (second.continue_final_message, second.add_generation_prompt) == (False, True)


def test_asking_for_no_logprobs_takes_the_runs_top_logprobs_away() -> None:
    assert (
        resolve(
            GenerationOptions(logprobs=False), GenerationOptions(logprobs=True, top_logprobs=3)
        ).top_logprobs
        == 0
    )


def test_asking_for_top_logprobs_asks_for_logprobs() -> None:
    assert resolve(GenerationOptions(top_logprobs=2)).logprobs is True
    assert (
        resolve(GenerationOptions(top_logprobs=2), GenerationOptions(logprobs=False)).logprobs
        is True
    )
    assert resolve(None).logprobs is False


def test_merging_with_nothing_gives_the_other_side() -> None:
    options = GenerationOptions(seed=1)
    assert merge(options, None) is options
    assert merge(None, options) is options
    assert merge(None, None) is None


def test_options_from_plain_data_may_be_nested_or_flat() -> None:
    flat = options_from(
        {"stop": ["a"], "strip_whitespace": True, "max_pixels": 9, "enable_thinking": False}
    )
    nested = options_from(
        {
            "stop": {"stop": ["a"]},
            "decode": {"strip_whitespace": True},
            "preprocess": {"max_pixels": 9},
            "chat": {"enable_thinking": False},
        }
    )
    assert flat == nested
    assert flat.decode == DecodeOptions(strip_whitespace=True)


def test_options_from_plain_data_name_the_place() -> None:
    with pytest.raises(InvalidField, match=r"line 3: GenerationOptions.seed takes .* not 'x'"):
        options_from({"seed": "x"}, where="line 3")
    with pytest.raises(
        UnknownField, match="line 3: StopOptions has no field 'stopp'; did you mean 'stop'"
    ):
        options_from({"stop": {"stopp": []}}, where="line 3")
    with pytest.raises(InvalidField, match="line 3: decode takes a mapping, not True"):
        options_from({"decode": True}, where="line 3")


def test_every_option_has_a_flat_name_and_a_flat_value() -> None:
    assert set(option_names()) == set(flat_values(DEFAULTS))
    assert flat_values(GenerationOptions())["min_pixels"] is None


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("n", "samples"),
        ("num_return_sequences", "samples"),
        ("do_sample", "temperature"),
        ("max_completion_tokens", "max_new_tokens"),
        *(("max_tokens", "max_new_tokens"), ("max_length", "max_new_tokens")),
        *(("stop_sequences", "stop"), ("stop_strings", "stop")),
        *(("eos_token_id", "stop_token_ids"), ("random_seed", "seed")),
        *(("response_format", "json_schema"), ("guided_json", "json_schema")),
        *(("guided_regex", "regex"), ("guided_choice", "choice"), ("chat_template", "template")),
        ("chat_template_kwargs", "template_kwargs"),
    ],
)
def test_names_that_others_give_an_option_lead_to_its_own(said: str, meant: str) -> None:  # C1
    values: dict[str, Any] = {said: 1}
    with pytest.raises(UnknownField, match=f"{said!r}; did you mean {meant!r}"):
        GenerationOptions(**values)
    with pytest.raises(UnknownField, match=f"{said!r}; did you mean {meant!r}"):
        options_from(values)


@pytest.mark.parametrize(
    "name", sorted(set(option_names()) - {f.name for f in dataclasses.fields(GenerationOptions)})
)
def test_an_option_that_stands_in_a_record_of_its_own_says_in_which(name: str) -> None:
    group, kind = next(
        (group, kind)
        for group, kind in GROUPS.items()
        if name in {f.name for f in dataclasses.fields(kind)}
    )
    with pytest.raises(UnknownField) as refused:
        GenerationOptions(**{name: None})
    assert (
        str(refused.value) == f"GenerationOptions has no field {name!r}; it is a field of {group}:"
        f" {group}={kind.__name__}({name}=...)"
    )
    with pytest.raises(
        UnknownField, match=rf"{name}_'; did you mean '{name}'\?.* It is a field of {group}"
    ):
        GenerationOptions(**{f"{name}_": None})


@pytest.mark.parametrize("name", OPTIONS)
def test_each_row_of_the_table_has_help_a_default_and_another_value_to_try(name: str) -> None:
    entry = OPTIONS[name]
    tried = flat_values(options_from({name: entry.row.trial}))[name]
    assert entry.help.endswith((".", ")"))
    assert flat_values(DEFAULTS)[name] == entry.row.default != tried
    assert tried is not None
    assert entry.row.engines <= set(ENGINE_LIST)
    assert entry.row.engines
    assert name not in OTHER_NAMES


WIRES: tuple[Wire, ...] = ("vllm", "sglang", "chat")


def test_values_are_sent_as_each_wire_names_them() -> None:
    options = options_from({"max_new_tokens": 7, "seed": 1, "min_p": 0.5})
    for wire in WIRES:
        fields = wire_fields(options, wire)
        assert (
            fields["max_new_tokens" if wire == "sglang" else "max_tokens"],
            fields["min_p"],
        ) == (7, 0.5)
    assert (
        wire_fields(options, "sglang")["sampling_seed"] == wire_fields(options, "chat")["seed"] == 1
    )
    assert "min_p" not in wire_fields(options, "chat", "openai_chat")


def test_a_choice_of_no_token_is_none() -> None:
    with pytest.raises(InvalidField, match="at least one token id"):
        GenerationOptions(allowed_token_ids=())


@pytest.mark.parametrize(
    "value",
    [[(1, 2)], {1: 101}, {1: math.nan}, {-1: 1}, {True: 1}, {"a": 1}, {1: "2"}, {1: 1, "1": 2}],
    ids=str,
)
def test_a_bias_maps_token_ids_to_numbers_from_minus_100_to_100(value: Any) -> None:
    with pytest.raises(InvalidField, match="logit_bias takes a mapping"):
        GenerationOptions(logit_bias=value)


def test_biases_are_equal_in_any_order_and_by_keys_of_json() -> None:
    one = GenerationOptions(logit_bias={7: 1, 5: -2.5})
    assert one == options_from({"logit_bias": {"5": -2.5, "7": 1.0}})
    assert one.logit_bias == {5: -2.5, 7: 1.0}
    assert options_from(json.loads(strict_json.dump(flat_values(one)))) == options_from(
        flat_values(one)
    )
    with pytest.raises(InvalidField, match="1024 at most"):
        GenerationOptions(logit_bias=dict.fromkeys(range(1025), 1))


@pytest.mark.parametrize("words", ["no", [""], [" "], ["no", "\n\t"]], ids=repr)
def test_a_bad_word_is_more_than_white_space(words: Any) -> None:
    with pytest.raises(InvalidField, match="bad_words takes"):
        GenerationOptions(bad_words=words)
    assert GenerationOptions(bad_words=[" no"]).bad_words == (" no",)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(True, True), (False, False), ("raw", True), ("Processed", "processed")],
)
def test_logprobs_name_their_distribution(given: Any, kept: Any) -> None:
    options = options_from({"logprobs": given})
    assert options.logprobs == kept and type(options.logprobs) is type(kept)
    assert resolve(options, GenerationOptions(logprobs=True)).logprobs == kept


@pytest.mark.parametrize("given", [2, "logits", 1.0, []])
def test_logprobs_of_other_names_are_refused(given: Any) -> None:
    with pytest.raises(InvalidField, match="takes True or False, or 'raw' or 'processed', not"):
        options_from({"logprobs": given})
