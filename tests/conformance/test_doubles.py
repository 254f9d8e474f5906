"""For each capability an engine that claims it and does not have it: the suite finds it out, and
names the capability.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import pipegen as pg
from pipegen.engines.capabilities import ENGINES, FEATURES
from pipegen.engines.protocol import RowDone
from pipegen.engines.session import BatchSession
from pipegen.records.fields import unchecked_replace
from pipegen.records.option_groups import GROUPS
from pipegen.records.options import option_names
from pipegen.records.results import Encoded, Raw
from pipegen.testing import conformance, conformance_ends, conformance_prompts
from pipegen.testing.conformance import NOT_NEUTRAL

FORGOTTEN: dict[str, Any] = {"control_tokens": "allow", "max_new_tokens": 60}
"""What takes the place of an option that is ignored, where that is not its default."""


TEMPLATES, BUDGETS = (
    conformance_prompts.the_template_is_used_with_its_variables,
    conformance_prompts.images_keep_to_the_budget,
)
VIDEOS = conformance_prompts.videos_are_frames_with_times
REAL_ONLY: dict[str, conformance.Check] = {
    **dict.fromkeys(
        ("template", "template_kwargs", "enable_thinking", "add_generation_prompt"), TEMPLATES
    ),
    **dict.fromkeys(("min_pixels", "max_pixels", "do_resize"), BUDGETS),
    **dict.fromkeys(("fps", "max_frames", "max_video_pixels"), VIDEOS),
    "tool_choice": conformance.a_tool_is_called_where_asked,
}
"""Options that take a real template, image processor or grammar, and their checks."""


def ignoring(name: str, honest: pg.Route) -> pg.Route:
    """That route, which claims the option and does not see it."""

    def forget(request: pg.GenerationRequest) -> pg.GenerationRequest:
        options = request.options or pg.GenerationOptions()
        for group, kind in GROUPS.items():
            said = getattr(options, group)
            if said is not None and name in {field.name for field in dataclasses.fields(kind)}:
                return unchecked_replace(
                    request,
                    options=dataclasses.replace(
                        options, **{group: dataclasses.replace(said, **{name: FORGOTTEN.get(name)})}
                    ),
                )
        if name in {field.name for field in dataclasses.fields(options)}:
            return unchecked_replace(
                request, options=dataclasses.replace(options, **{name: FORGOTTEN.get(name)})
            )
        return request

    deaf = pg.pure("forget", forget) >> honest
    return dataclasses.replace(honest, steps=deaf.steps)


def complaint(check: conformance.Check, route: pg.Route) -> str:
    """What a check has to say; nothing where it is content."""
    try:
        check(route)
    except (AssertionError, pg.ContractError) as words:
        return str(words)
    return ""


def found_out(name: str, route: pg.Route) -> bool:
    """Whether the suite names the capability."""
    return any(
        re.search(rf"(^| ){name}[:=]", complaint(check, route)) for check in conformance.CHECKS
    )


# these models have no adapters, whose law is in property_tests/test_hf_adapters.py
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(option_names()) - {*REAL_ONLY, "adapter"}))
def test_an_option_that_is_ignored_is_found_out(name: str, model: Any) -> None:
    route = ignoring(name, pg.route(model()))
    assert found_out(name, route)


@pytest.fixture(scope="module")
def embedded() -> Iterator[pg.Route]:
    pytest.importorskip("torch")
    with pg.backends.hf("embedded", dtype="float32") as route:
        yield route


@pytest.mark.parametrize("name", REAL_ONLY)
def test_an_option_that_a_real_model_ignores_is_found_out(name: str, embedded: pg.Route) -> None:
    with pytest.raises(AssertionError, match=f"{name}:"):
        REAL_ONLY[name](ignoring(name, embedded))


def test_every_option_has_a_value_that_must_be_refused_where_it_is_not_honoured() -> None:
    carried = {
        *("samples", "use_generation_config", "max_prompt_tokens", "on_overflow"),
        *("strip_whitespace", "skip_special_tokens", "max_new_tokens", "stop"),
    }
    # one asks for logprobs too, and the other for an answer to continue
    with_others = {"top_logprobs", "continue_final_message"}
    assert set(option_names()) - set(NOT_NEUTRAL) == carried | with_others


def blind(model: Any) -> pg.Route:
    """Takes images and does not look at them."""

    class Blind(model):  # type: ignore[misc]
        def logits(self, encoded: Encoded, ids: Sequence[int]) -> Any:
            return super().logits(
                dataclasses.replace(encoded, prompt=dataclasses.replace(encoded.prompt, images=())),
                ids,
            )

    return pg.route(Blind())


def late(model: Any) -> pg.Route:
    """Streams nothing before the end."""

    class Late(model):  # type: ignore[misc]
        def stream(self, inputs: Sequence[Encoded]) -> Any:
            return (event for event in super().stream(inputs) if isinstance(event, RowDone))

    return pg.route(Late())


def absent(model: Any) -> pg.Route:
    """Answers every prompt alike."""

    class Absent(model):  # type: ignore[misc]
        def logits(self, encoded: Encoded, ids: Sequence[int]) -> Any:
            same = dataclasses.replace(encoded.prompt, token_ids=(65,), compact_token_ids=(65,))
            return super().logits(dataclasses.replace(encoded, prompt=same), ids)

    return pg.route(Absent())


def crowded(model: Any) -> pg.Route:
    """Draws a seeded row by its place in the batch as well."""

    class Crowded(model):  # type: ignore[misc]
        def generate(self, inputs: Sequence[Encoded]) -> Any:
            def moved(encoded: Encoded, place: int) -> Encoded:
                seed = encoded.options.seed
                return dataclasses.replace(
                    encoded,
                    options=dataclasses.replace(
                        encoded.options, seed=None if seed is None else seed + place
                    ),
                )

            made = super().generate([moved(encoded, place) for place, encoded in enumerate(inputs)])
            return [
                slot.map(lambda raw, encoded=encoded: dataclasses.replace(raw, encoded=encoded))
                for slot, encoded in zip(made, inputs, strict=True)
            ]

    return pg.route(Crowded())


def unwatched(model: Any) -> pg.Route:
    """Takes plugins and shows them nothing while it generates."""

    class Unwatched(model):  # type: ignore[misc]
        def _made(self, encoded: Encoded) -> Any:
            alone = copy.copy(self)
            alone.plugins = ()
            return super(Unwatched, alone)._made(encoded)

    return pg.route(Unwatched())


DOUBLES: dict[str, Callable[[Any], pg.Route]] = {
    "images": blind,
    "stream": late,
    "token_ids": absent,
    "repeatable": crowded,
    "watch": unwatched,
}


@pytest.mark.parametrize("name", DOUBLES)
def test_a_feature_that_is_not_there_is_found_out(name: str, model: Any) -> None:
    assert found_out(name, DOUBLES[name](model))


@pytest.mark.parametrize("name", ["stopping_criteria", "logits_processor"])
def test_a_hook_that_is_not_called_is_found_out(name: str, embedded: pg.Route) -> None:
    class Deaf:
        """The engine, without the hook."""

        def __init__(self, engine: Any) -> None:
            self._engine = engine

        def __getattr__(self, attribute: str) -> Any:
            return getattr(self._engine, attribute)

        def with_plugin(self, plugin: Any) -> Any:
            return Deaf(self._engine.with_plugin(dataclasses.replace(plugin, **{name: None})))

    engine: Any = Deaf(embedded.engine)
    with pytest.raises(AssertionError, match=name):
        conformance_ends.plugins_act_on_the_row(pg.route(engine))


def test_every_feature_has_its_double() -> None:
    assert {*DOUBLES, "stopping_criteria", "logits_processor", "videos"} == set(FEATURES)


def test_videos_that_are_not_taken_are_found_out(model: Any) -> None:
    route = blind(model)
    capabilities = route.engine.capabilities
    route.engine.capabilities = dataclasses.replace(
        capabilities, honours=capabilities.honours | {"videos"}
    )
    with pytest.raises(AssertionError):
        VIDEOS(route)


def test_an_engine_that_mixes_up_the_rows_that_it_is_fed_is_found_out(model: Any) -> None:
    class Swapped(BatchSession):
        """Gives the rows of a step each other's answers."""

        def step(self) -> Any:
            ended: Any = super().step()
            return [
                RowDone(row=one.row, slot=other.slot)
                for one, other in zip(ended, reversed(ended), strict=True)
            ]

    class Fed(model):  # type: ignore[misc]
        in_flight = 4

        def open(self, wake: Any, **how: Any) -> Any:
            return (Swapped if how["fed"] else BatchSession)(self, wake, **how)

    with pytest.raises(AssertionError, match="imap with in_flight=3"):
        conformance.what_is_fed_gives_what_one_batch_gives(pg.route(Fed()))


@pytest.mark.parametrize("name", ["stop", "stop_token_ids", "max_new_tokens"])
def test_an_engine_that_runs_on_past_the_end_is_found_out(name: str, model: Any) -> None:
    class Tireless(model):  # type: ignore[misc]
        """Generates on; pipegen cuts what is too much, so the results are right."""

        def _made(self, encoded: Encoded) -> Any:
            forgotten = (
                {"stop": pg.StopOptions(ignore_eos=True)}
                if name != "max_new_tokens"
                else {"max_new_tokens": 200}
            )
            made = super()._made(
                dataclasses.replace(
                    encoded, options=dataclasses.replace(encoded.options, **forgotten)
                )
            )

            def told(raw: Raw) -> Raw:
                return dataclasses.replace(raw, encoded=encoded)

            return made.map(told)

    with pytest.raises(AssertionError, match=name if name == "max_new_tokens" else "stop"):
        conformance_ends.the_engine_itself_halts(pg.route(Tireless()))


def greedy_only(model: Any) -> pg.Route:
    class Greedy(model):  # type: ignore[misc]
        """Claims everything that vLLM does, and takes the likeliest token each time."""

        def chosen(self, encoded: Encoded, ids: Sequence[int], logits: Any) -> int:
            return max(logits, key=lambda token_id: logits[token_id])

    return pg.route(Greedy(ENGINES["vllm"]))


def test_an_engine_that_is_always_greedy_fails_wherever_it_claims_more(model: Any) -> None:
    found = "\n".join(complaint(check, greedy_only(model)) for check in conformance.CHECKS)
    for name in (
        "temperature",
        "seed",
        "samples",
        "repetition_penalty",
        "min_new_tokens",
        "template",
    ):
        assert re.search(rf"^{name}:", found, re.MULTILINE), name
