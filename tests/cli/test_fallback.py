"""`--fallback` on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipegen.cli.app import app
from pipegen.cli.outputs import Tally

pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("fallback", "words"), [("hff", "did you mean 'hf'"), ("hf", "takes another engine than")]
)
def test_an_engine_to_fall_back_to_that_is_none_is_bad_usage(
    fallback: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hi"}\n')
    done = CliRunner().invoke(
        app,
        ["generate", str(tmp_path / "in.jsonl"), "--model", "embedded", "--fallback", fallback],
        terminal_width=400,
    )
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.split())
    assert "--fallback" in done.stderr


def test_an_error_to_fall_back_for_is_named_rightly_and_goes_with_an_engine(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hi"}\n')
    for flags, words in (
        (["Timeot", "--fallback", "vllm_server"], "did you mean 'Timeout'"),
        (["Timeout"], "takes --fallback too"),
    ):
        command = [
            *("generate", str(tmp_path / "in.jsonl"), "--model", "embedded", "--fallback-when"),
            *flags,
        ]
        done = CliRunner().invoke(app, command, terminal_width=400)
        assert (done.exit_code, words in " ".join(done.stderr.split())) == (2, True)
        assert "--fallback-when" in done.stderr


def test_a_chat_names_the_engine_that_answered(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("torch")
    backend = (
        '{type: vllm, base_url: "http://127.0.0.1:1/v1", model: embedded, fallback_backend: hf,'
        " fallback_when: [BackendFailed], max_tokens: 3}"
    )
    (tmp_path / "chat.yaml").write_text(f"agents:\n  - id: one\n    backend: {backend}\n")
    done = CliRunner().invoke(app, ["chat", "-c", str(tmp_path / "chat.yaml"), "Hi"])
    assert (
        done.exit_code,
        "BackendFailed of vLLM · Hugging Face transformers]" in done.stdout,
    ) == (0, True)


def test_the_summary_counts_fallbacks_where_there_were_any() -> None:
    assert (
        Tally(succeeded=3, fell_back=2).summary(1.0)
        == "3 requests in 1.0 s: 3 succeeded, 0 failed; 0 prompt tokens, 0 generated; 2 by fallback"
    )
