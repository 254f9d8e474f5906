"""`pipegen diff` on files as `pipegen generate` writes them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from returns.result import Success
from typer.testing import CliRunner

from pipegen.cli.app import app
from pipegen.io.jsonl import to_plain
from pipegen.records.options import GenerationOptions, resolve
from pipegen.records.results import Finish, GenerationResult

RESULT = GenerationResult(text="ab", raw_text="ab", token_ids=(3, 4), prompt_token_ids=(1,), finish=Finish.EOS, options=resolve(GenerationOptions()))


def written(file: Path, **results: GenerationResult) -> str:
    file.write_text("".join(json.dumps(to_plain(Success(result), name)) + "\n" for name, result in results.items()))
    return str(file)


def test_equal_files_leave_with_zero_whatever_their_order(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["diff", written(tmp_path / "a", x=RESULT, y=RESULT), written(tmp_path / "b", y=RESULT, x=RESULT)])
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "2 requests, 2 equal\n")


def test_a_difference_is_named_and_leaves_with_one(tmp_path: Path) -> None:
    other = dataclasses.replace(RESULT, token_ids=(3, 5), text="ac")
    files = [written(tmp_path / "a", x=RESULT, y=RESULT), written(tmp_path / "b", x=RESULT, y=other)]
    done = CliRunner().invoke(app, ["diff", *files])
    assert (done.exit_code, done.stdout) == (1, "y: ids: 2 tokens, at 1: 4 | 2 tokens, at 1: 5\n")
    assert done.stderr == "2 requests, 1 equal, 1 differ at ids\n"
    as_json = CliRunner().invoke(app, ["diff", "--json", *files])
    assert json.loads(as_json.stdout) == {"id": "y", "stage": "ids", "first": "2 tokens, at 1: 4", "second": "2 tokens, at 1: 5"}


@pytest.mark.parametrize("text", ["{", '{"id": "a"}', "[]", '{"id": "a", "ok": true}', "\xff"])
def test_a_file_that_holds_no_results_is_bad_usage(tmp_path: Path, text: str) -> None:
    (tmp_path / "b").write_text(text, encoding="latin-1")
    assert CliRunner().invoke(app, ["diff", written(tmp_path / "a", x=RESULT), str(tmp_path / "b")]).exit_code == 2


def test_a_file_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["diff", written(tmp_path / "a", x=RESULT), str(tmp_path / "none")]).exit_code == 2
