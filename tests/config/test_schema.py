"""The JSON Schema for editors, the table of keys and the backends say the same."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

from pipegen import backends
from pipegen.cli import main
from pipegen.config import chat_from, schema
from pipegen.config.keys import KEYS, LEGACY, VLLM_ALONE, keys_of, never_passed_on
from pipegen.core.names import InvalidField
from pipegen.records.engine_list import BACKENDS, TYPES
from pipegen.records.option_groups import GROUPS
from pipegen.records.option_table import SERVER_NAMES
from pipegen.records.options import option_names

SCHEMA = schema()
Checker = Callable[[Any], Any]


@pytest.fixture(scope="module")
def checker() -> Checker:
    """Raises `ValueError` for what the schema does not take."""
    made: Checker = pytest.importorskip("fastjsonschema").compile(SCHEMA)
    return made


def test_the_command_prints_the_schema(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["schema"])
    assert json.loads(capsys.readouterr().out) == SCHEMA


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_keys_are_the_arguments_of_the_backend(backend: str) -> None:
    arguments = set(inspect.signature(getattr(backends, backend)).parameters) - {"model"}
    assert set(keys_of(backend)) == arguments


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_schema_knows_every_key_and_every_option(backend: str) -> None:
    properties = SCHEMA["$defs"][backend]["properties"]
    assert set(properties) >= {*keys_of(backend), *option_names(), "type", "model"}
    assert all(properties[name].get("description") for name in (*keys_of(backend), *option_names()))


def test_every_key_has_a_schema_and_words() -> None:
    assert [
        name
        for name, key in KEYS.items()
        if not key.words or not getattr(key.check, "schema", None)
    ] == []


GOOD: list[Any] = [
    {
        "backend": {
            "type": "hf",
            "model": "embedded",
            "temperature": 0.5,
            "stop": ["a"],
            "device": None,
        }
    },
    {
        "agent": {
            "id": "a",
            "backend": {
                "type": "vllm",
                "model": "m",
                "base_url": None,
                "enable_thinking": True,
                "top_k": 0,
            },
        }
    },
    {
        "agents": [
            {
                "backend": {"type": "sglang", "model": "m", "extra_body": {"a": 1}},
                "system_message": "s",
            }
        ],
        "ui": {"display_type": "simple"},
    },
    {
        "backend": {
            "type": "vllm",
            "model": "m",
            "max_model_len": 5,
            "decode": {"strip_whitespace": True},
        }
    },
    {"backend": {"type": "hf", "model": "m"}, "ui": None, "id": None, "system_message": None},
    {"backend": {"type": "hf", "model": "m"}, "ui": {"type": "simple", "logging_enabled": None}},
    {
        "backend": {
            "type": "vllm",
            "model": "m",
            "fallback_backend": "hf",
            "fallback_when": ["Timeout", "UnsupportedOption"],
        }
    },
    {
        "agent": {
            "backend": {
                "type": "sglang",
                "model": "m",
                "fallback_backend": "vllm_server",
                "fallback_when": None,
            }
        }
    },
    {
        "backend": {
            "type": "openai",
            "model": "m",
            "base_url": "HTTPS://h",
            "api_key": "",
            "headers": {"X": "y"},
            "top_k": -1,
        }
    },
]
BAD: list[Any] = [
    {},
    {"agents": []},
    {"backend": {"type": "hf"}},
    {"backend": {"type": "hf", "model": ""}},
    {"backend": {"type": "hf", "model": "m", "base_url": "http://h"}},
    {"backend": {"type": "vllm", "model": "m", "base_url": None, "dtype": "auto"}},
    {"backend": {"type": "vllm", "model": "m", "timeout": 3}},
    {"backend": {"type": "sglang_server", "model": "m", "temprature": 1}},
    {"backend": {"type": "sglang", "model": "m", "top_p": 0}},
    {"backend": {"type": "sglang", "model": "m", "dialect": "french"}},
    {"backend": {"type": "sglang", "model": "m"}, "ui": {"colour": True}},
    {
        "backend": {"type": "sglang", "model": "m"},
        "ui": {"type": "simple", "display_type": "simple"},
    },
    {"backend": {"type": "gemini", "model": "m"}},
    {"backend": {"type": "hf", "model": "m", "fallback_backend": "hf"}},
    {"backend": {"type": "sglang", "model": "m", "fallback_backend": "openai_server"}},
    {
        "backend": {
            "type": "vllm",
            "model": "m",
            "base_url": None,
            "fallback_backend": "openai_server",
        }
    },
    {"backend": {"type": "hf", "model": "m", "fallback_when": ["Timeout"]}},
    {
        "backend": {
            "type": "hf",
            "model": "m",
            "fallback_backend": "vllm",
            "fallback_when": ["Timeot"],
        }
    },
    {"backend": {"type": None, "model": "m"}},
    {"backend": {"type": "sglang", "model": "m", "dialect": "vllm"}},
    {"agent": {"backend": {"type": "hf", "model": "m"}}, "id": "a"},
    {"backend": {"type": "hf", "model": "m"}, "agent": None},
]


@pytest.mark.parametrize("values", GOOD)
def test_what_is_read_is_valid(values: Any, checker: Checker) -> None:
    chat_from(values)
    checker(values)


@pytest.mark.parametrize("values", BAD)
def test_what_is_refused_is_not_valid(values: Any, checker: Checker) -> None:
    with pytest.raises(InvalidField):
        chat_from(values)
    with pytest.raises(ValueError, match=r"data"):
        checker(values)


AWKWARD: list[Any] = [
    *(None, True, 0, 1, -1, 0.5, -0.5, "", "x", "auto", "http://h:1", "ftp://h", [], ["a"], [""]),
    *([1], {}, {"a": 1}, {"a": "b"}, {"stop": ["a"]}),
]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("served", [False, True])
def test_the_schema_and_the_reader_agree_on_every_key(
    kind: str, served: bool, checker: Checker
) -> None:
    def taken(check: Checker, values: Any) -> bool:
        try:
            check(values)
        except ValueError:
            return False
        return True

    parted = []
    # there the dialect is found by the port
    moved = () if kind.startswith(("openai", "chat")) else VLLM_ALONE
    for name in (
        *KEYS,
        "fallback_backend",
        "fallback_when",
        *SERVER_NAMES,
        *GROUPS,
        *option_names(),
        *moved,
        *never_passed_on(),
        *LEGACY,
        "logit_bias",
        "bogus",
    ):
        for value in AWKWARD:
            values = {
                "backend": {
                    "type": kind,
                    "model": "m",
                    **({"base_url": None} if served else {}),
                    name: value,
                }
            }
            # JSON within a string is beyond a schema
            if name not in ("json_schema", "guided_json") and taken(chat_from, values) != taken(
                checker, values
            ):
                parted.append((name, value))
    assert parted == []
