"""Values that Python holds equal but that are written differently stay apart wherever requests are
compared.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.drivers.arguments import Admission
from pipegen.io.jsonl import to_plain
from pipegen.jobs.row_keys import Keys
from pipegen.records.frozen import FrozenMapping, freeze, thaw
from pipegen.testing.fake import FakeEngine, ToyRenderer

USER = {"role": "user", "content": "Hi"}
NAN = float("nan")
ALIKE: tuple[Any, ...] = (
    *(1, 1.0, True, 0, 0.0, -0.0, False, {"a": 1, "b": 2}, {"b": 2, "a": 1}, [1], [True], [1, 1]),
    *({"a": [1]}, {"a": [1.0]}, NAN, None),
)


def tool(value: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": {"default": value}}}


CARRIERS = {
    "tools": lambda value: {"messages": [USER], "tools": [tool(value)]},
    "arguments": lambda value: {
        "messages": [
            USER,
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"type": "function", "function": {"name": "f", "arguments": {"a": value}}}
                ],
            },
            {"role": "tool", "content": "4"},
        ]
    },
    "extras": lambda value: {"messages": [{**USER, "weight": value}]},
    "template_kwargs": lambda value: {
        "messages": [USER],
        "options": {"chat": {"template_kwargs": {"n": value}}},
    },
}


class JsonRenderer(ToyRenderer):
    """Writes all that it is given as JSON."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]],
        template: str | None,
        variables: Mapping[str, Any],
    ) -> str:
        return json.dumps([messages, tools, variables])


def test_frozen_mappings_are_equal_if_they_are_written_equally() -> None:
    frozen = [freeze({"n": value}) for value in ALIKE]
    for row, one in enumerate(frozen):
        assert [one == other for other in frozen] == [
            row == column for column in range(len(frozen))
        ]
        assert one == FrozenMapping(one), "the same values in another mapping"
    assert freeze({"n": 1}) == {"n": True}, "beside a dict they compare as dicts do"


def test_equal_frozen_mappings_hash_alike_and_survive_pickling() -> None:
    for value in ALIKE[:-2]:
        frozen = freeze({"n": value})
        twin = pickle.loads(pickle.dumps(frozen))  # our own bytes
        assert (twin, hash(twin), repr(twin)) == (frozen, hash(frozen), repr(frozen))


@pytest.mark.parametrize("where", CARRIERS)
def test_the_prompts_of_one_batch_are_each_written_from_their_own_values(where: str) -> None:
    values = [value for value in ALIKE if value is not NAN]
    engine = FakeEngine("ok", renderer=JsonRenderer())
    together = pg.run(
        pg.route(engine),
        [CARRIERS[where](value) for value in values],
        {"chat": {"control_tokens": "allow"}},
    )
    texts = [encoded.prompt.text for encoded in engine.calls[0]]
    assert all(map(pg.is_ok, together))
    assert texts == [alone(CARRIERS[where](value)) for value in values]
    assert len(set(texts)) == len(values)


def alone(request: dict[str, Any]) -> str:
    engine = FakeEngine("ok", renderer=JsonRenderer())
    pg.run(pg.route(engine), [request], {"chat": {"control_tokens": "allow"}})
    return str(engine.calls[0][0].prompt.text)


def test_the_options_of_the_run_are_merged_with_each_requests_own() -> None:
    asked = [CARRIERS["template_kwargs"](value) for value in ALIKE[:-2]]
    admitted: list[Any] = [
        slot.unwrap() for slot in Admission(pg.GenerationOptions(seed=1)).batch(asked)
    ]
    written = [json.dumps(thaw(request.options.chat.template_kwargs)) for request in admitted]
    assert written == [json.dumps({"n": value}) for value in ALIKE[:-2]]


@pytest.mark.parametrize("where", CARRIERS)
def test_rows_of_a_job_have_keys_of_their_own(where: str) -> None:
    keys = Keys({"engines": [], "pipeline": "", "plugins": [], "version": "", "options": {}})
    requests = [pg.request_from(CARRIERS[where](value)).unwrap() for value in ALIKE[:-2]]
    found = {keys.of(request) for request in requests}
    again = Keys({"engines": [], "pipeline": "", "plugins": [], "version": "", "options": {}})
    assert found == {again.of(request) for request in reversed(requests)}, (
        "a key that counts equal ones would depend on the order"
    )


def test_a_result_is_written_with_its_own_options() -> None:
    values = ALIKE[:-2]
    slots = pg.run(
        pg.route(FakeEngine("ok")), [CARRIERS["template_kwargs"](value) for value in values]
    )
    written = [json.dumps(to_plain(slot)["options"]["template_kwargs"]) for slot in slots]
    assert written == [json.dumps({"n": value}) for value in values]


def test_a_job_names_a_change_that_python_holds_equal(tmp_path: Path) -> None:
    for value, changed in ((1, ()), (True, ("template_kwargs.n was 1, is True",))):
        with pg.job(
            pg.route(FakeEngine("ok")),
            [{"prompt": "Hi"}],
            tmp_path,
            {"chat": {"template_kwargs": {"n": value}}},
        ) as running:
            assert pg.is_ok(next(running))
        assert running.changed == changed
