"""What a caller hands over by mistake: it is refused at once, in words that say what to do, and not
by an AttributeError from deep inside.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from returns.result import Success

import pipegen as pg
from pipegen.core.pipe import identity
from pipegen.testing.fake import FakeEngine

ROUTE = pg.route(FakeEngine("ok"))


def length(result: pg.GenerationResult) -> int:
    return len(result.text)


PIPE = ROUTE >> pg.pure("length", length)


def drained(events: AsyncIterator[Any]) -> list[Any]:
    async def drain() -> list[Any]:
        return [event async for event in events]

    return asyncio.run(drain())


DRIVERS: dict[str, Callable[..., Any]] = {
    "run": pg.run,
    "arun": lambda *args, **named: asyncio.run(pg.arun(*args, **named)),
    "imap": lambda *args, **named: list(pg.imap(*args, **named)),
    "aimap": lambda *args, **named: drained(pg.aimap(*args, **named)),
    "stream": lambda *args, **named: list(pg.stream(*args, **named)),
    "astream": lambda *args, **named: drained(pg.astream(*args, **named)),
}
KEYED: dict[str, Callable[..., Any]] = {
    "imap_keyed": lambda *args, **named: list(pg.imap_keyed(*args, **named)),
    "aimap_keyed": lambda *args, **named: drained(pg.aimap_keyed(*args, **named)),
}
every_driver = pytest.mark.parametrize(
    "driver", [*DRIVERS.values(), *KEYED.values()], ids=[*DRIVERS, *KEYED]
)
batch_driver = pytest.mark.parametrize("driver", DRIVERS.values(), ids=DRIVERS)
keyed_driver = pytest.mark.parametrize("driver", KEYED.values(), ids=KEYED)


@batch_driver
@pytest.mark.parametrize(
    "single",
    [
        *({"prompt": "Hi"}, {}, "Hi", b"Hi", pg.TextGenerationRequest(prompt="Hi")),
        Success(pg.TextGenerationRequest(prompt="Hi")),
    ],
)
def test_a_single_request_is_not_taken_for_a_batch(driver: Callable[..., Any], single: Any) -> None:
    with pytest.raises(
        TypeError,
        match=(
            f"requests are a list or another iterable, not one {type(single).__name__}: put a"
            " single request into a list"
        ),
    ):
        driver(ROUTE, single)


@keyed_driver
@pytest.mark.parametrize("mapping", [{"a": {"prompt": "Hi"}}, {"ab": {"prompt": "Hi"}}, {}])
def test_requests_with_labels_are_handed_over_as_their_items(
    driver: Callable[..., Any], mapping: Any
) -> None:
    with pytest.raises(
        TypeError,
        match=re.escape(
            "pairs of a key and a request are wanted, not a dict: hand over its .items()"
        ),
    ):
        driver(ROUTE, mapping)


@keyed_driver
@pytest.mark.parametrize(
    "no_pair",
    [
        {"prompt": "Hi", "id": "a"},
        "ab",
        pg.TextGenerationRequest(prompt="Hi"),
        (1, {"prompt": "Hi"}, 3),
        (),
    ],
)
def test_what_is_no_pair_is_named(driver: Callable[..., Any], no_pair: Any) -> None:
    with pytest.raises(TypeError, match="pairs of a key and a request are wanted, not "):
        driver(ROUTE, [("a", {"prompt": "Hi"}), no_pair])


@batch_driver
@pytest.mark.parametrize("line", ["Hi", 3, None, ["a"], b"Hi"])
# a line of JSON may hold anything
def test_a_request_that_is_no_request_fails_in_its_slot(
    driver: Callable[..., Any], line: Any
) -> None:
    given = [{"prompt": "Hi"}, line]
    last = driver(ROUTE, given)[-1]
    error = (last.slot if isinstance(last, pg.Done) else last).failure()
    assert (type(error), error.message) == (
        pg.InvalidRequest,
        f"request: a mapping or a request is wanted, not {line!r}",
    )
    assert error.hint.startswith('a request is a mapping such as {"prompt": "..."}')


@every_driver
@pytest.mark.parametrize("options", ["greedy", 0.7, pg.StopOptions(stop=("a",))])
def test_options_of_the_run_are_a_record_or_a_mapping(
    driver: Callable[..., Any], options: Any
) -> None:
    with pytest.raises(
        TypeError,
        match=f"options are GenerationOptions or a mapping of them, not {type(options).__name__}",
    ):
        driver(ROUTE, [], options)


@batch_driver
def test_options_of_the_run_may_be_a_mapping(driver: Callable[..., Any]) -> None:
    requests = [{"prompt": "Hi"}]
    assert driver(ROUTE, requests, {"max_new_tokens": 1}) == driver(
        ROUTE, requests, pg.GenerationOptions(max_new_tokens=1)
    )
    with pytest.raises(
        pg.InvalidField, match="there is no option 'temprature'; did you mean 'temperature'"
    ):
        driver(ROUTE, requests, {"temprature": 1})


@every_driver
@pytest.mark.parametrize("images", ["docs", {"root": "docs"}, True])
def test_the_policy_of_images_is_a_record(driver: Callable[..., Any], images: Any) -> None:
    with pytest.raises(
        TypeError, match=f"image_policy is an ImagePolicy, not {type(images).__name__}"
    ):
        driver(ROUTE, [], image_policy=images)


@every_driver
@pytest.mark.parametrize("route", ["embedded", FakeEngine("a"), lambda request: request])
def test_what_is_run_is_a_pipe(driver: Callable[..., Any], route: Any) -> None:
    with pytest.raises(
        TypeError,
        match=(
            rf"a route or another pipe is run, not {type(route).__name__}: pg.route\(engine\) makes"
            r" a route of an engine"
        ),
    ):
        driver(route, [])


def test_iterators_and_generators_are_taken() -> None:
    def made() -> Iterator[dict[str, str]]:
        yield {"prompt": "Hi"}

    for requests in (
        made(),
        iter([{"prompt": "Hi"}]),
        {"a": {"prompt": "Hi"}}.values(),
        (pg.TextGenerationRequest(prompt="Hi"),),
    ):
        assert len(pg.run(ROUTE, requests)) == 1


@pytest.mark.parametrize(
    "when",
    [
        *("UnsupportedMultimodal", ValueError, (pg.Timeout, ValueError), [pg.Timeout], None),
        *(pg.Timeout("slow"), 3),
    ],
)
def test_a_fallback_takes_kinds_of_errors_or_a_function_and_nothing_that_would_never_qualify(
    when: Any,
) -> None:
    with pytest.raises(
        TypeError,
        match="when takes a type of GenerationError, a tuple of them, or a function of the error",
    ):
        pg.fallback(ROUTE, ROUTE, when=when)


@pytest.mark.parametrize(
    "when",
    [
        pg.Timeout,
        pg.GenerationError,
        (pg.Timeout, pg.BackendFailed),
        (),
        lambda error: error.retryable,
    ],
)
def test_a_fallback_takes_these(when: Any) -> None:
    assert pg.fallback(ROUTE, ROUTE, when=when).name == "fallback(fake, fake-2)"


@pytest.mark.parametrize("then", [str.strip, "strip", FakeEngine("a"), None])
def test_a_pipe_is_joined_with_pipes_only(then: Any) -> None:
    with pytest.raises(
        TypeError,
        match=(
            r"a pipe is joined with a pipe, not .*: each\(name, stage\) or pure\(name, f\) makes"
            r" one of a function"
        ),
    ):
        _ = ROUTE >> then


@pytest.mark.parametrize("lift", [pg.each, pg.pure])
@pytest.mark.parametrize(
    "arguments", [("name", 3), (str.strip, "name"), ("name", None), (None, str.strip)]
)
def test_a_stage_has_a_name_and_is_a_function(lift: Any, arguments: Any) -> None:
    with pytest.raises(
        TypeError,
        match=rf"a name and a function are wanted, such as {lift.__name__}\('strip', strip\), not ",
    ):
        lift(*arguments)


@pytest.mark.parametrize(
    "catch",
    [
        *(ValueError, (BaseException,), (KeyboardInterrupt,), ("ValueError",), [ValueError]),
        *((ValueError("no"),), None),
    ],
)
def test_a_stage_lists_the_exceptions_that_bad_data_raises(catch: Any) -> None:
    with pytest.raises(
        TypeError, match="catch takes a tuple of exceptions that a stage may raise on bad data"
    ):
        pg.each("name", str, catch=catch)  # type: ignore[arg-type, type-var]


@pytest.mark.parametrize("error", ["bad", ValueError("bad"), None, pg.StageFailed])
def test_a_stage_fails_with_an_error_that_can_say_what_to_do(error: Any) -> None:
    stage: Any = pg.each("picky", lambda result: pg.Failure(error))
    words = (
        f"stage 'picky' failed with {type(error).__name__}, not a GenerationError such as"
        " StageFailed"
    )
    with pytest.raises(pg.ContractError, match=words):
        pg.run(ROUTE >> stage, [{"prompt": "Hi"}])


@pytest.mark.parametrize("slot", [pg.Success(1), pg.Failure(pg.StageFailed("no"))])
def test_a_function_that_gives_slots_is_no_pure_one(slot: Any) -> None:
    lifted: Any = pg.pure("half", lambda result: slot)
    with pytest.raises(
        pg.ContractError,
        match=re.escape(
            "the function 'half' returned a Result: each('half', ...) takes a function that does"
        ),
    ):
        pg.run(ROUTE >> lifted, [{"prompt": "Hi"}])


def test_plugins_are_attached_to_pipes_with_an_engine() -> None:
    plugin = pg.plugins.balanced_json()
    with pytest.raises(TypeError, match="plugins are attached to a route, not to str"):
        pg.attach("embedded", plugin)  # type: ignore[type-var]  # that is the mistake
    with pytest.raises(TypeError, match="length has no stage that is bound to an engine"):
        pg.attach(pg.pure("length", length), plugin)


@pytest.mark.parametrize(
    "plugin", ["balanced_json", pg.plugins.balanced_json, [pg.plugins.balanced_json()], None]
)
def test_only_plugins_are_attached(plugin: Any) -> None:
    with pytest.raises(TypeError, match=f"plugins are attached, not {type(plugin).__name__}"):
        pg.attach(ROUTE, plugin)


def test_tokens_are_counted_for_one_request_on_a_route() -> None:
    for pipe, name in (
        (pg.fallback(ROUTE, ROUTE, when=pg.Timeout), r"fallback\(fake, fake-2\)"),
        ("embedded", "str"),
        (identity(), ""),
    ):
        with pytest.raises(
            TypeError,
            match=(
                f"tokens are counted on a route through one engine, not on {name}: hand over one of"
            ),
        ):
            pg.count_tokens(pipe, {"prompt": "Hi"})  # type: ignore[arg-type]  # that is the mistake
    assert pg.count_tokens(PIPE, {"prompt": "Hi"}) == pg.count_tokens(ROUTE, {"prompt": "Hi"})
    assert (
        pg.count_tokens(ROUTE, "Hi").failure().message
        == "request: a mapping or a request is wanted, not 'Hi'"
    )  # type: ignore[arg-type]


def test_a_record_between_stages_is_no_request_and_the_hint_says_how_stages_run_alone() -> None:
    head = pg.stages.resolve(FakeEngine(lambda row: "A"))
    (record,) = pg.run(head, [{"prompt": "Hi"}])
    (again,) = pg.run(head, [record.unwrap()])  # type: ignore[list-item]  # that is the mistake
    assert "stages.apply((pg.Success(record),))" in (again.failure().hint or "")
    (result,) = pg.run(ROUTE, [{"prompt": "Hi"}])
    (again,) = pg.run(ROUTE, [result.unwrap()])  # type: ignore[list-item]
    assert "result.then(...)" in (again.failure().hint or "")
    (again,) = pg.run(ROUTE, ["Hi"])  # type: ignore[list-item]
    assert "a request is a mapping such as" in (again.failure().hint or "")


def test_a_grid_is_made_of_a_request_and_several_options() -> None:
    request = pg.TextGenerationRequest(prompt="Hi")
    with pytest.raises(pg.InvalidField, match=r"grid takes a request such as .*, not 'Hi'"):
        pg.grid("Hi", [{"seed": 1}])  # type: ignore[call-overload]
    with pytest.raises(
        pg.InvalidField,
        match="grid takes a list or a mapping of options, not one GenerationOptions",
    ):
        pg.grid(request, pg.GenerationOptions())  # type: ignore[call-overload]


@pytest.mark.parametrize("config", ["embedded", {"model": "embedded"}, None])
def test_a_configuration_is_loaded_and_not_a_name(config: Any) -> None:
    for load in (pg.backends.load,):
        with pytest.raises(
            TypeError, match=f"a ModelLoadConfig is loaded, not {type(config).__name__}: "
        ):
            load(config)


@pytest.mark.parametrize("engine", ["embedded", None, ROUTE])
def test_a_route_is_made_of_an_engine(engine: Any) -> None:
    with pytest.raises(
        TypeError, match=f"a route is made of an engine, not {type(engine).__name__}: "
    ):
        pg.route(engine)


@pytest.mark.parametrize("values", ["x", None, [], 3])
def test_what_is_no_plain_slot_is_refused(values: Any) -> None:
    with pytest.raises(
        pg.InvalidField, match=f"a line's values are a mapping, not {type(values).__name__}"
    ):
        pg.from_plain(values)


def test_slots_are_made_plain_and_not_their_results() -> None:
    result = pg.run(ROUTE, [{"prompt": "Hi"}])[0].unwrap()
    with pytest.raises(TypeError, match="to_plain takes a slot, not GenerationResult: Success"):
        pg.to_plain(result)  # type: ignore[arg-type]


def test_a_pipe_is_made_of_stages_not_of_a_function() -> None:
    with pytest.raises(TypeError, match="a pipe is made of steps, not of function: "):
        pg.Pipe("own", lambda batch: batch)  # type: ignore[arg-type]  # the very mistake


async def numbers() -> Any:
    yield {"prompt": "Hi"}


@batch_driver
@pytest.mark.parametrize("given", [None, 5, 0.5])
def test_what_has_no_items_is_no_batch(driver: Callable[..., Any], given: Any) -> None:
    with pytest.raises(
        TypeError, match=f"requests are a list or another iterable, not {type(given).__name__}"
    ):
        driver(ROUTE, given)


def test_asynchronous_requests_are_for_aimap() -> None:
    for driver in (
        pg.run,
        lambda *given: list(pg.imap(*given)),
        lambda *given: list(pg.stream(*given)),
        lambda *given: asyncio.run(pg.arun(*given)),
    ):
        with pytest.raises(TypeError, match="not an asynchronous async_generator: aimap takes one"):
            driver(ROUTE, numbers())

    async def all_of_them() -> list[Any]:
        return [slot async for slot in pg.aimap(ROUTE, numbers())]

    assert all(map(pg.is_ok, asyncio.run(all_of_them())))


@pytest.mark.parametrize("given", [[1, 2], [{"prompt": "Hi"}], None, Success(1), "ab"])
def test_a_stage_alone_takes_slots(given: Any) -> None:
    with pytest.raises(
        TypeError, match=r"a batch is a tuple of slots, such as \(pg\.Success\(value\),\), not"
    ):
        pg.pure("length", length).apply(given)
    # a list does too
    assert pg.pure("double", lambda number: 2 * number).apply([Success(1)]) == (Success(2),)  # type: ignore[arg-type]


def test_a_stage_is_no_asynchronous_function() -> None:
    async def later(value: Any) -> Any:
        return Success(value)

    for lift in (pg.each, pg.pure):
        with pytest.raises(TypeError, match="the stage 'later' is an async function"):
            lift("later", later)


def test_records_are_drawn_for_an_engine_not_for_its_route() -> None:
    from pipegen.testing import strategies

    for strategy in (
        strategies.resolved_requests,
        strategies.rendered,
        strategies.encoded,
        strategies.raws,
        strategies.decoded,
    ):
        with pytest.raises(TypeError, match=r"route\.engine is the engine of a route"):
            strategy(ROUTE)  # type: ignore[arg-type]  # that is the mistake
