"""`pipegen verify`: its verdict as text and JSON, its exit codes; what it asks and judges is in
tests/report.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen import embedded
from pipegen.cli import verify_command
from pipegen.cli.verify_command import in_words, of_file_in_words
from pipegen.core.errors import CallFailed, Timeout
from pipegen.core.names import InvalidField
from pipegen.io.jsonl import to_plain
from pipegen.io.openai_batch import batch_line
from pipegen.report.audit_file import Recorded, RowVerdict
from pipegen.report.diagnose import judge
from pipegen.report.verdict import Answer, Verdict

Command = Callable[..., Any]
RIGHT: dict[str, Any] = {
    "url": "http://h",
    "model": "m",
    "dialect": "vllm",
    "precision": "float32",
    "prompts": 2,
    "answers": 4,
    "agreeing": 4,
    "ways": ("chat", "ids"),
    "spread": 1e-6,
    "margin": 0.0,
    "faults": (),
}
OTHER = Answer(
    id="q",
    way="chat",
    expected=(1, 2),
    prompt_token_ids=(1, 9),
    token_ids=(3,),
    logprobs=(-1.0,),
    likeliest=((3, -1.0),),
)


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What `verify` was called with; its verdict, or error, is the first entry."""
    calls: list[Any] = [Verdict(**RIGHT)]

    def verify(url: str, model: str, requests: Any, **settings: Any) -> Verdict:
        calls.append((url, model, None if requests is None else [*requests], settings))
        settings["tell"](1, "asking")
        if isinstance(calls[0], Exception):
            raise calls[0]
        verdict: Verdict = calls[0]
        return verdict

    monkeypatch.setattr("pipegen.cli.verify_command.verify", verify)
    return calls


def test_a_right_server_is_told_as_text_and_as_json(
    command: Command, given: list[Any], tmp_path: Path
) -> None:
    assert command("verify", "http://h", "--model", "m", "--quiet").code == 0
    ran = command("verify", "http://h", "--model", "m", "--json", "--summary", tmp_path / "s.json")
    assert (ran.code, ran.out[0]["right"], ran.out[0]["faults"]) == (0, True, [])
    assert json.loads((tmp_path / "s.json").read_text()) == {**ran.out[0], "exit_code": 0}
    assert given[1][2] is None  # what comes with pipegen
    assert (
        in_words(Verdict(**RIGHT)).splitlines()[0]
        == "right: m at http://h (vllm), by chat and by ids"
    )


def test_a_fault_is_exit_code_1_and_says_where_it_shows(command: Command, given: list[Any]) -> None:
    given[0] = Verdict(**{**RIGHT, "margin": 2.0, "faults": judge([OTHER]), "too_long": 1})
    ran = command("verify", "http://h", "--model", "m", "--json")
    seen = (ran.code, ran.out[0]["faults"][0]["kind"], ran.out[0]["faults"][0]["first"])
    assert seen == (1, "template", "q")
    words = in_words(given[0])
    assert words.startswith("not right: m at http://h")
    for part in (
        "template: the server renders",
        "in 1 of 1 answers by chat, first in q",
        "2 tokens of the prompt are expected",
        "largest margin",
        "too long",
    ):
        assert part in words


def test_failed_requests_are_exit_code_1_and_a_few_are_shown(
    command: Command, given: list[Any]
) -> None:
    given[0] = Verdict(
        **{
            **RIGHT,
            "failed": tuple((str(number), "chat", Timeout("slow")) for number in range(5)),
            "spread": None,
        }
    )
    assert command("verify", "http://h", "--model", "m").code == 1
    words = in_words(given[0])
    assert words.startswith("not known: ")
    assert "failed by chat: 0: Timeout: slow" in words
    assert "... and 2 more failed" in words


def test_requests_of_a_file_and_the_flags_reach_it(
    command: Command, given: list[Any], jsonl: Any
) -> None:
    source = jsonl(
        {"id": "a", "messages": [{"role": "user", "content": "Hi"}]}, "not JSON", {"prompt": "Hi"}
    )
    flags = (
        *("--dialect", "sglang", "--precision", "bfloat16", "--chat-only", "--deterministic"),
        *("--max-new-tokens", "7", "--device", "cpu", "--served-model-name", "n"),
    )
    assert command("verify", "http://h", source, "--model", "m", *flags).code == 0
    _, _, asked, settings = given[1]
    assert [pg.is_ok(slot) for slot in asked] == [True, False, True]
    wanted = {
        "dialect": "sglang",
        "precision": "bfloat16",
        "chat_only": True,
        "deterministic": True,
        "max_new_tokens": 7,
        "device": "cpu",
        "served_model_name": "n",
    }
    assert wanted.items() <= settings.items()
    command("verify", "http://h", source, "--model", "m", "--rows", "1")
    assert len(given[2][2]) == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--dialect", "vlm"), "takes one of vllm, sglang, plain"),
        (("--precision", "int8"), "takes one of float32, float16, bfloat16"),
        (("--max-new-tokens", "0"), "--max-new-tokens"),
    ],
)
def test_bad_flags_are_bad_usage(
    command: Command, given: list[Any], flags: tuple[str, ...], words: str
) -> None:
    ran = command("verify", "http://h", "--model", "m", *flags)
    assert (ran.code, len(given)) == (2, 1)
    assert words in " ".join(ran.err.replace("│", " ").split())


def test_bad_usage_that_the_settings_find_and_a_server_that_is_down(
    command: Command, given: list[Any], tmp_path: Path
) -> None:
    assert command("verify", "http://h").code == 2
    assert command("verify", "http://h", tmp_path / "missing.jsonl", "--model", "m").code == 2
    given[0] = InvalidField("base_url takes an address")
    assert command("verify", "http://h", "--model", "m").code == 2
    given[0] = ImportError("no torch")
    assert "cannot be used" in command("verify", "http://h", "--model", "m").err
    given[0] = CallFailed(Timeout("it is down"))
    ran = command("verify", "http://h", "--model", "m")
    assert ran.code == 1
    assert "it is down" in ran.err


@pytest.fixture(scope="module")
def made_lines() -> tuple[list[Any], list[Any]]:
    """Results of the embedded model, and their requests."""
    pytest.importorskip("torch")
    texts = {"months": "List the months of the year.", "count": "Count from 1 to 12."}
    requests = [
        {"id": name, "messages": [{"role": "user", "content": text}]}
        for name, text in texts.items()
    ]
    with pg.backends.hf("embedded", dtype="float32") as route:
        slots = pg.run(route, requests, {"max_new_tokens": 8, "temperature": 0.0, "logprobs": True})
    return [to_plain(slot, name) for slot, name in zip(slots, texts, strict=True)], requests


@pytest.fixture
def made(jsonl: Any, made_lines: tuple[list[Any], list[Any]]) -> tuple[Path, Path]:
    """A file of these results, and the file of their requests."""
    lines, requests = made_lines
    return jsonl(*lines, name="results.jsonl"), jsonl(*requests)


def test_a_file_that_the_model_made_is_right(command: Command, made: tuple[Path, Path]) -> None:
    results, requests = made
    ran = command("verify", results, requests, "--model", "embedded", "--json", "--quiet")
    assert (ran.code, ran.out[0]["right"], ran.out[0]["counts"]) == (0, True, {"right": 2})
    assert [row["id"] for row in ran.out[0]["rows"]] == ["months", "count"]


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was judged: each call's arguments. The first entry changes what comes of it."""
    calls: list[Any] = [lambda found: found]
    judge = verify_command.verify_results

    def count(*all: Any, **how: Any) -> Recorded:
        calls.append(all)
        found: Recorded = calls[0](judge(*all, **how))
        return found

    monkeypatch.setattr(verify_command, "verify_results", count)
    return calls


def test_a_file_that_was_judged_is_not_judged_again(
    command: Command, made_lines: tuple[list[Any], list[Any]], jsonl: Any, judged: list[Any]
) -> None:
    lines, requests = made_lines
    results, asked = jsonl(*lines, name="once.jsonl"), jsonl(*requests, name="asked.jsonl")
    verify = ("verify", results, asked, "--model", "embedded", "--json")
    first, again = command(*verify, "--quiet"), command(*verify)
    assert (again.code, again.out, len(judged)) == (first.code, first.out, 2)
    assert "once.jsonl was judged before, by this model and these versions" in again.err
    for changed in (
        lambda: (*verify[:2], *verify[3:]),
        lambda: (*verify, "--precision", "bfloat16"),
        lambda: results.write_text(results.read_text() + "\n") and verify,
        lambda: asked.write_text(asked.read_text() + "\n") and verify,
    ):
        del judged[1:]
        command(*changed(), "--quiet")
        assert len(judged) == 2


@pytest.mark.parametrize(
    "why", ["images", "not judged", "not measured", "changed meanwhile", "weights"]
)
def test_a_verdict_that_may_be_another_is_not_kept(
    why: str,
    command: Command,
    made_lines: tuple[list[Any], list[Any]],
    jsonl: Any,
    judged: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(verify_command, "noise_of", lambda *all, **how: None)
    precision = ("--precision", "bfloat16") if why == "not measured" else ()
    lines, requests = json.loads(json.dumps(made_lines))
    for line in lines if why == "not measured" else ():
        for token in line["logprobs"]:  # as a lower precision computes them
            token["logprob"] -= 0.05
    if why == "images":
        requests = [{**requests[0], "images": ["cat.png"]}, *requests[1:]]
        pytest.importorskip("PIL.Image").new("RGB", (64, 48), "red").save(tmp_path / "cat.png")
    results, asked = jsonl(*lines, name="twice.jsonl"), jsonl(*requests, name="seen.jsonl")
    model = shutil.copytree(embedded.path(), tmp_path / "model")

    def change(found: Recorded) -> Recorded:
        if why == "changed meanwhile":
            results.write_text(results.read_text() + "\n")
        (first, *rest) = found.rows
        unknown = dataclasses.replace(first, verdict="not judged")
        return dataclasses.replace(found, rows=(unknown, *rest)) if why == "not judged" else found

    judged[0], text = change, results.read_text()
    for _ in range(2):
        command("verify", results, asked, "--model", model, "--quiet", "--json", *precision)
        results.write_text(text)
        (weights,) = model.glob("*.safetensors")
        if why == "weights":
            data = bytearray(weights.read_bytes())
            data[len(data) // 3] ^= 1
            weights.write_bytes(data)
    assert len(judged) == 3


def test_rows_of_a_file_that_the_model_did_not_make_are_named(
    command: Command, made: tuple[Path, Path], tmp_path: Path
) -> None:
    results, _ = made
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    rows[0]["token_ids"][3:5] = [5, 6]
    for place, entry in enumerate(rows[0]["logprobs"]):
        entry["token_id"] = rows[0]["token_ids"][place]
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = command(
        *("verify", wrong, "--model", "embedded", "--json", "--quiet"),
        *("--summary", tmp_path / "s.json"),
    )
    assert (ran.code, [row["verdict"] for row in ran.out[0]["rows"]]) == (1, ["weights", "right"])
    assert json.loads((tmp_path / "s.json").read_text())["exit_code"] == 1


READINGS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "map": ({"uid": "a", "question": "Count from 1 to 12."}, ("--map", "user=question,id=uid")),
    "system": ({"messages": [{"role": "user", "content": "Hi"}]}, ("--system", "Be brief.")),
    "answer": (
        {
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello."},
            ]
        },
        ("--drop-final-answer",),
    ),
    "image": ({"prompt": "What is it?", "images": ["cat.png"]}, ()),
    "folder": (None, ("--prompt", "What is it?", "--system", "Be brief.")),
}


@pytest.mark.parametrize("way", READINGS)
def test_requests_are_read_as_the_run_has_read_them(
    way: str, command: Command, jsonl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(
        "pipegen.cli.generate.open_routes",
        lambda load: pg.backends.hf("embedded", dtype="float32"),
    )
    line, flags = READINGS[way]
    folder = tmp_path / "folder"
    folder.mkdir()
    image.new("RGB", (64, 48), "red").save(folder / "cat.png")
    source = folder if line is None else jsonl(line, name="folder/in.jsonl")
    out, model = tmp_path / "out.jsonl", ("--model", "embedded")
    length = ("--max-new-tokens", "4", "--temperature", "0")
    assert command("generate", source, "-o", out, *model, *length, *flags).code == 0
    judge = ("--json", "--quiet", *model)
    assert command("verify", out, source, *judge).out[0]["counts"] == {"right": 1}
    copy = tmp_path / "copy.jsonl"  # its job is not beside it
    copy.write_bytes(out.read_bytes())
    assert command("verify", copy, source, *judge, *flags).out[0]["counts"] == {"right": 1}
    if way == "system":
        silent = command("verify", copy, source, "--quiet", *model)
        assert (silent.code, silent.out) == (1, [])


def test_flags_of_reading_that_have_nothing_to_read_are_refused(
    command: Command, made: tuple[Path, Path]
) -> None:
    results, requests = made
    for flags, words in (
        (("--map", "user=question"), "goes with IN"),
        (("--system", "Be brief."), "goes with IN"),
        ((requests, "--prompt", "Hi"), "goes with a folder of images"),
    ):
        ran = command("verify", results, *flags, "--model", "embedded")
        assert (ran.code, words in " ".join(ran.err.replace("│", " ").split())) == (2, True)


def test_requests_for_a_server_are_read_by_the_flags_of_generate(
    command: Command, given: list[Any], jsonl: Any
) -> None:
    source = jsonl({"question": "Hi"})
    flags = ("--map", "user=question", "--system", "Be brief.")
    assert command("verify", "http://h", source, "--model", "m", *flags).code == 0
    (slot,) = given[1][2]
    assert [message.role for message in slot.unwrap().messages] == ["system", "user"]


def test_flags_of_servers_and_requests_of_other_rows_are_refused_with_a_file(
    command: Command, made: tuple[Path, Path], jsonl: Any
) -> None:
    results, requests = made
    for flags in (("--chat-only",), ("--timeout", "3"), ("--max-new-tokens", "8")):
        ran = command("verify", results, "--model", "embedded", *flags)
        assert (ran.code, "is for servers" in " ".join(ran.err.split())) == (2, True)
    lines = [json.loads(line) for line in requests.read_text().splitlines()]
    others = jsonl(*[{**line, "id": f"other {line['id']}"} for line in lines], name="others.jsonl")
    assert command("verify", results, others, "--model", "embedded").code == 2
    first = jsonl(lines[0], name="first.jsonl")
    assert command("verify", results, first, "--model", "embedded").code == 0


def test_rows_of_equal_ids_are_paired_with_their_requests_by_order(
    command: Command, made: tuple[Path, Path], jsonl: Any
) -> None:
    lines, asked = ([json.loads(line) for line in file.read_text().splitlines()] for file in made)
    results = jsonl(*[{**line, "id": "same"} for line in lines], name="same.jsonl")
    requests = jsonl(*[{**line, "id": "same"} for line in asked], name="asked.jsonl")
    ran = command("verify", results, requests, "--model", "embedded", "--json", "--quiet")
    assert (ran.code, ran.out[0]["counts"]) == (0, {"right": 2})
    assert [row["id"] for row in ran.out[0]["rows"]] == ["same", "same [2]"]
    one = jsonl({**lines[0], "id": "same"}, name="one.jsonl")
    ran = command("verify", one, requests, "--model", "embedded")
    assert (ran.code, "which is whose is not known" in " ".join(ran.err.split())) == (2, True)


def test_a_file_of_the_batch_form_is_not_judged_and_is_compared(
    command: Command, jsonl: Any
) -> None:
    pytest.importorskip("torch")
    result = pg.GenerationResult(
        text="Hi", raw_text="Hi", finish=pg.Finish.EOS, options=pg.GenerationOptions()
    )
    batch = jsonl(batch_line(pg.Success(result), "a", "m"), name="batch.jsonl")
    ran = command("verify", batch, "--model", "embedded", "--json", "--quiet")
    assert (ran.code, ran.out[0]["counts"]) == (1, {"not judged": 1})
    assert "options" in ran.out[0]["rows"][0]["evidence"]
    assert command("diff", batch, batch).code == 0


def test_requests_in_place_of_results_are_named(command: Command, jsonl: Any) -> None:
    for line, words in (
        ({"id": "a", "prompt": "Hi"}, "is a request"),
        ({"id": "a"}, "no field ok"),
    ):
        ran = command("verify", jsonl(line), "--model", "embedded")
        assert (ran.code, words in " ".join(ran.err.split())) == (2, True)
    assert "there is no file missing" in " ".join(
        command("verify", "missing", "--model", "embedded").err.split()
    )


def test_files_that_are_no_results_are_bad_usage(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "other.jsonl").write_text('{"prompt": "Hi"}\n')
    assert command("verify", tmp_path / "other.jsonl", "--model", "embedded").code == 2
    assert command("verify", tmp_path / "missing.jsonl", "--model", "embedded").code == 2


def test_a_verdict_on_a_file_in_words() -> None:
    kinds: Any = ("right", "sampling", "sampling", "sampling", "sampling", "not judged")
    rows = tuple(
        RowVerdict(id=str(place), verdict=kind, evidence=f"evidence {place}")
        for place, kind in enumerate(kinds)
    )
    found = Recorded(
        model="m",
        precision="float32",
        rows=rows,
        spread=0.1,
        most_spread=0.0005,
        whole="sampling: too often",
    )
    words = of_file_in_words(found, Path("r.jsonl"))
    assert words.startswith("not right: r.jsonl by m: 4 sampling, ")
    for part in (
        "log probabilities differ by 0.1",
        "all rows together: sampling: too often",
        "  1: evidence 1",
        "... and 1 more",
        "  5: evidence 5",
    ):
        assert part in words
    other = RowVerdict(id="a", verdict="template", evidence="another prompt")
    assert "--system" in of_file_in_words(dataclasses.replace(found, rows=(other,)), Path("r"))
    assert "--system" not in words
    assert of_file_in_words(
        Recorded(model="m", precision="float32", rows=(), spread=None, most_spread=0.0), Path("r")
    ).startswith("not known: r by m: no rows")
