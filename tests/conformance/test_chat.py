"""The conformance suite on chat routes, over a server that answers with the prompt backwards: what
is owed where a server renders.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

import pipegen as pg
from pipegen.testing import conformance, conformance_ends, conformance_prompts, conformance_sampling
from pipegen.testing.faulty import FaultyServer

# What that server does not do. It draws nothing, looks at no image, keeps to no form, and answers
# to the words of the prompt alone;
IGNORED = (
    conformance.answers_have_the_form_that_was_asked,
    conformance_sampling.temperature_is_honoured,
    conformance_sampling.seeds_draw_apart,
    conformance_sampling.samples_are_drawn_apart,
    conformance_sampling.penalties_count_what_was_written,
    conformance_prompts.answers_depend_on_the_images,
)
# and beyond the plain form it knows no token ids, no least length and no turn to continue.
IGNORED_BEYOND = (
    *(conformance.logprobs_are_the_models_own, conformance_ends.min_new_tokens_holds),
    conformance_prompts.a_final_message_is_continued,
)
DIALECTS: dict[str, tuple[conformance.Check, ...]] = {
    "plain": IGNORED,
    "vllm": (*IGNORED, *IGNORED_BEYOND),
    "sglang": (*IGNORED, *IGNORED_BEYOND),
}
CASES = [
    (dialect, check)
    for dialect, ignored in DIALECTS.items()
    for check in conformance.CHECKS
    if check not in ignored
]


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    pytest.importorskip("aiohttp")
    pytest.importorskip("PIL")
    with FaultyServer(limit=0) as running:  # it names no limit, and keeps none
        yield running


@pytest.mark.parametrize(
    ("dialect", "check"), CASES, ids=[f"{dialect}-{check.__name__}" for dialect, check in CASES]
)
def test_a_chat_route_conforms(
    server: FaultyServer, dialect: str, check: conformance.Check
) -> None:
    with pg.backends.openai_server("toy", base_url=server.url, dialect=dialect) as route:
        check(route)


@pytest.mark.parametrize(
    ("dialect", "check"),
    [(dialect, check) for dialect, ignored in DIALECTS.items() for check in ignored],
)
def test_a_server_that_ignores_what_it_is_asked_is_found_out(
    server: FaultyServer, dialect: str, check: conformance.Check
) -> None:
    with (
        pg.backends.openai_server("toy", base_url=server.url, dialect=dialect) as route,
        pytest.raises(AssertionError),
    ):
        check(route)


@pytest.mark.parametrize(
    "check",
    [
        conformance.effective_options_sent_again_give_the_same,
        conformance.rows_do_not_depend_on_their_batch,
        conformance.sync_and_async_agree,
        conformance.streamed_text_is_the_batch_text,
        conformance_ends.a_stop_string_cuts_and_halts,
    ],
)
def test_a_server_that_says_something_else_each_time_is_found_out(
    server: FaultyServer, check: conformance.Check
) -> None:
    calls = itertools.count()
    server.reply = lambda ids: [48 + next(calls) % 10, *reversed(ids), 257]
    with (
        pg.backends.openai_server("toy", base_url=server.url, dialect="vllm") as route,
        pytest.raises(AssertionError),
    ):
        check(route)


def test_a_server_that_counts_no_tokens_is_found_out(server: FaultyServer) -> None:
    answer = {
        "choices": [{"finish_reason": "stop", "message": {"content": "a"}}],
        "usage": {"prompt_tokens": 0},
    }
    server.answers["/v1/chat/completions"] = (200, answer)
    with (
        pg.backends.openai_server("toy", base_url=server.url) as route,
        pytest.raises(AssertionError),
    ):
        conformance.results_report_what_was_done(route)
