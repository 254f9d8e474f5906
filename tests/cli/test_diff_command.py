"""`pipegen diff` on files as `pipegen generate` writes them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from returns.result import Success
from typer.testing import CliRunner

from pipegen import write_table
from pipegen.cli.app import app
from pipegen.io.jsonl import to_plain
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.results import Finish, GenerationResult

RESULT = GenerationResult(
    text="ab",
    raw_text="ab",
    token_ids=(3, 4),
    prompt_token_ids=(1,),
    finish=Finish.EOS,
    options=resolve(GenerationOptions()),
)


def written(file: Path, **results: GenerationResult) -> str:
    file.write_text(
        "".join(
            json.dumps(to_plain(Success(result), name)) + "\n" for name, result in results.items()
        )
    )
    return str(file)


def test_equal_files_leave_with_zero_whatever_their_order(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app,
        [
            "diff",
            written(tmp_path / "a", x=RESULT, y=RESULT),
            written(tmp_path / "b", y=RESULT, x=RESULT),
        ],
    )
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "2 requests, 2 equal\n")


def test_a_difference_is_named_and_leaves_with_one(tmp_path: Path) -> None:
    other = dataclasses.replace(RESULT, token_ids=(3, 5), text="ac")
    files = [
        written(tmp_path / "a", x=RESULT, y=RESULT),
        written(tmp_path / "b", x=RESULT, y=other),
    ]
    done = CliRunner().invoke(app, ["diff", *files])
    assert (done.exit_code, done.stdout) == (
        1,
        "y: ids\n  A 2 tokens, at 1: 4\n  B 2 tokens, at 1: 5\n",
    )
    assert done.stderr == "2 requests, 1 equal, 1 differ at ids\n"
    as_json = CliRunner().invoke(app, ["diff", "--json", *files])
    assert json.loads(as_json.stdout) == {
        "id": "y",
        "stage": "ids",
        "first": "2 tokens, at 1: 4",
        "second": "2 tokens, at 1: 5",
    }


def test_brief_lines_are_compared_by_what_they_have(tmp_path: Path) -> None:
    sampled = dataclasses.replace(RESULT, samples=(RESULT, RESULT))
    counted = dataclasses.replace(RESULT, raw_text="ab<end>", prompt_tokens=1, completion_tokens=2)
    whole = written(tmp_path / "a", x=counted, y=sampled, z=RESULT)
    lines = [
        to_plain(Success(result), name, brief=True)
        for name, result in {
            "x": counted,
            "y": dataclasses.replace(
                sampled, samples=(RESULT, dataclasses.replace(RESULT, text="c"))
            ),
            "z": dataclasses.replace(RESULT, finish=Finish.LENGTH),
        }.items()
    ]
    (tmp_path / "b").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for files in ([whole, str(tmp_path / "b")], [str(tmp_path / "b"), whole]):
        done = CliRunner().invoke(app, ["diff", *files])
        assert done.stderr == "3 requests, 1 equal, 1 differ at text, 1 differ at finish\n"
    again = CliRunner().invoke(app, ["diff", str(tmp_path / "b"), str(tmp_path / "b")])
    assert again.exit_code == 0


def test_lines_and_a_table_of_the_same_samples_are_equal(tmp_path: Path) -> None:
    options = resolve(GenerationOptions(samples=2, seed=1))
    first, second = (
        dataclasses.replace(
            RESULT,
            raw_text="abSTOP",
            finish=Finish.STOP_STRING,
            stop="STOP",
            options=dataclasses.replace(options, samples=1, seed=seed),
        )
        for seed in (1, 2)
    )
    sampled = dataclasses.replace(first, options=options, samples=(first, second))
    lines = written(tmp_path / "a", x=sampled)
    for text, code in {"ab": 0, "c": 1}.items():
        table = tmp_path / f"{text}.parquet"
        other = dataclasses.replace(second, text=text)
        row = dataclasses.replace(sampled, samples=(first, other))
        write_table(table, [({"id": "x"}, Success(row))])
        for files in ([lines, str(table)], [str(table), lines]):
            assert CliRunner().invoke(app, ["diff", *files]).exit_code == code


def test_results_of_equal_ids_are_compared_by_their_order(tmp_path: Path) -> None:
    def file(name: str, *texts: str) -> str:
        results = [dataclasses.replace(RESULT, text=text, raw_text=text) for text in texts]
        lines = [to_plain(Success(result), "same") for result in results]
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return str(tmp_path / name)

    one, other = file("a", "x", "y", "z"), file("b", "x", "Y")
    assert CliRunner().invoke(app, ["diff", one, one]).exit_code == 0
    done = CliRunner().invoke(app, ["diff", one, other])
    assert done.exit_code == 1
    assert "same [2]: raw text" in done.stdout
    assert "same [3]: outcome" in done.stdout
    assert done.stderr == "3 requests, 1 equal, 1 differ at outcome, 1 differ at raw text\n"


@pytest.mark.parametrize("text", ["{", '{"id": "a"}', "[]", '{"id": "a", "ok": true}', "\xff"])
def test_a_file_that_holds_no_results_is_bad_usage(tmp_path: Path, text: str) -> None:
    (tmp_path / "b").write_text(text, encoding="latin-1")
    assert (
        CliRunner()
        .invoke(app, ["diff", written(tmp_path / "a", x=RESULT), str(tmp_path / "b")])
        .exit_code
        == 2
    )


def test_a_file_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    assert (
        CliRunner()
        .invoke(app, ["diff", written(tmp_path / "a", x=RESULT), str(tmp_path / "none")])
        .exit_code
        == 2
    )


def test_what_differs_is_shown_with_what_stands_around_it(tmp_path: Path) -> None:
    start = "Once upon a time there was a king who had three daughters, and the "
    one, other = (
        dataclasses.replace(RESULT, token_ids=(), raw_text=start + end, text=start + end)
        for end in ("eldest", "youngest " + "x" * 80)
    )
    done = CliRunner().invoke(
        app, ["diff", written(tmp_path / "a", x=one), written(tmp_path / "b", x=other)]
    )
    first, second = done.stdout.splitlines()[1:]
    assert first == "  A at 67: '... had three daughters, and the eldest'"
    assert second.startswith("  B at 67: '... had three daughters, and the youngest xxx")
    assert second.endswith("x...'")
    ids = dataclasses.replace(one, token_ids=(1,)), dataclasses.replace(other, token_ids=(2,))
    done = CliRunner().invoke(
        app, ["diff", written(tmp_path / "a", x=ids[0]), written(tmp_path / "b", x=ids[1])]
    )
    assert (
        done.stdout.splitlines()[1]
        == "  A 1 tokens, at 0: 1; text at 67: '... had three daughters, and the eldest'"
    )


def test_texts_are_compared_though_options_differ(tmp_path: Path) -> None:
    warm = dataclasses.replace(RESULT, options=resolve(GenerationOptions(temperature=0.7)))
    files = [
        written(tmp_path / "a", x=RESULT, y=RESULT),
        written(tmp_path / "b", x=warm, y=dataclasses.replace(warm, token_ids=(), raw_text="ac")),
    ]
    assert (
        CliRunner().invoke(app, ["diff", *files]).stderr
        == "2 requests, 0 equal, 2 differ at options\n"
    )
    done = CliRunner().invoke(app, ["diff", "--ignore", "options", *files])
    assert (done.exit_code, done.stderr) == (1, "2 requests, 1 equal, 1 differ at raw text\n")
    assert (
        CliRunner()
        .invoke(app, ["diff", "--ignore", "options", "--ignore", "raw text", *files])
        .exit_code
        == 0
    )
    wrong = CliRunner().invoke(app, ["diff", "--ignore", "option", *files])
    assert wrong.exit_code == 2
    assert "did you mean 'options'?" in wrong.stderr


def test_a_table_of_results_is_compared_with_lines(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pipegen.jobs.table_file import write_table

    logged = dataclasses.replace(RESULT, image_grid_thw=((1, 2, 2),))
    write_table(
        tmp_path / "a.parquet",
        [
            ({"id": "x", "prompt": "p"}, Success(RESULT)),
            ({"id": "y", "prompt": "p"}, Success(RESULT)),
        ],
    )
    file = written(tmp_path / "b", x=logged, y=dataclasses.replace(RESULT, text="other"))
    done = CliRunner().invoke(app, ["diff", str(tmp_path / "a.parquet"), file])
    assert (done.exit_code, done.stderr) == (1, "2 requests, 1 equal, 1 differ at text\n")


def test_what_another_program_has_filled_in_with_null_says_nothing(tmp_path: Path) -> None:
    """A brief line has the keys of all lines, where pandas or polars has written it again."""
    sampled = dataclasses.replace(RESULT, samples=(RESULT, RESULT), reasoning="Hm.")
    lines = [
        to_plain(Success(result), name, brief=True)
        for name, result in (("x", RESULT), ("y", sampled))
    ]
    names = {name: None for line in lines for name in line}
    for name, filled in (("a", {}), ("b", names)):
        text = "".join(json.dumps({**filled, **line}) + "\n" for line in lines)
        (tmp_path / name).write_text(text)
    for name in ("a", "b"):
        done = CliRunner().invoke(app, ["diff", str(tmp_path / name), str(tmp_path / "b")])
        assert (done.exit_code, done.stderr) == (0, "2 requests, 2 equal\n")
