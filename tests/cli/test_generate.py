"""`pipegen generate` over a file: one line out for each line in, in order, whatever the lines
are.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipegen as pg
from pipegen.testing.fake import FakeEngine

Command = Callable[..., Any]
HI = {"prompt": "Hi"}


def said(engine: FakeEngine) -> pg.GenerationOptions:
    """The effective options of the last call's first row."""
    return engine.calls[-1][0].options


def test_a_thousand_mixed_lines_give_a_thousand_lines_in_order(
    generate: Command, engine: FakeEngine, tmp_path: Path, written: Any
) -> None:
    (tmp_path / "good.png").write_bytes(b"good")
    (tmp_path / "bad.png").write_bytes(b"broken")
    kinds: list[Callable[[int], str]] = [
        lambda n: json.dumps({"id": f"r{n}", "prompt": f"text {n}"}),
        lambda n: json.dumps(
            {"id": f"r{n}", "messages": [{"role": "user", "content": f"chat {n}"}]}
        ),
        lambda n: json.dumps({"id": f"r{n}", "prompt": "What?", "images": ["good.png"]}),
        lambda n: json.dumps({"id": f"r{n}", "prompt": "What?", "images": ["bad.png"]}),
        lambda n: json.dumps({"id": f"r{n}", "prompt": "What?", "images": ["nowhere.png"]}),
        lambda n: '{"id": "cut off',
        lambda n: json.dumps({"id": f"r{n}", "prompt": "Hi", "options": {"temprature": 1}}),
    ]
    good = [True, True, True, False, False, False, False]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(kinds[n % 7](n) for n in range(1000)))
    out = tmp_path / "out.jsonl"
    ran = generate(source, "-o", out)
    lines = written(out)
    assert [line["id"] for line in lines] == [
        str(n + 1) if n % 7 == 5 else f"r{n}" for n in range(1000)
    ]
    assert [line["ok"] for line in lines] == [good[n % 7] for n in range(1000)]
    assert ran.code == 1
    assert len(engine.calls) == 7  # 429 rows, 64 at a time
    assert "1000 requests" in ran.err
    assert "429 succeeded, 571 failed" in ran.err
    assert "286 BadImage" in ran.err
    assert "285 InvalidRequest, the first is 6: line 6: not JSON" in ran.err


# B4
def test_one_broken_image_among_32_fails_alone_in_one_call(
    generate: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path
) -> None:
    (tmp_path / "good.png").write_bytes(b"good")
    (tmp_path / "bad.png").write_bytes(b"broken")
    source = jsonl(
        *({"prompt": "What?", "images": ["bad.png" if n == 17 else "good.png"]} for n in range(32))
    )
    ran = generate(source)
    assert [line["id"] for line in ran.out] == [str(n + 1) for n in range(32)]
    assert [n for n, line in enumerate(ran.out) if not line["ok"]] == [17]
    assert ran.out[17]["error"]["type"] == "BadImage"
    assert [len(call) for call in engine.calls] == [31]


def test_a_line_tells_the_whole_result(generate: Command, jsonl: Any) -> None:
    ran = generate(jsonl({"id": 7, **HI, "options": {"stop": ["END"]}}))
    (line,) = ran.out
    seen = (line["id"], line["ok"], line["text"], line["finish"], line["stop"])
    assert seen == (7, True, "Hello ", "stop_string", "END")
    assert set(line) == {"ok", *pg.GenerationResult.__dataclass_fields__} - {
        "turn",
        "written_transcript",
    }
    assert line["token_ids"] == list(b"Hello END")
    assert ran.code == 0


def test_brief_lines_hold_what_people_read(generate: Command, jsonl: Any) -> None:
    source = jsonl(HI, {"id": "b", "prompt": "x", "options": {"stop": ["END"]}}, "no JSON")
    line, stopped, failed = generate(source, "--brief").out
    assert line == {"id": "1", "ok": True, "text": "Hello END of it", "finish": "aborted"}
    assert stopped.items() >= {"text": "Hello ", "finish": "stop_string", "stop": "END"}.items()
    assert set(failed) == {"id", "ok", "error"}


def test_a_job_of_brief_lines_is_written_whole_without_being_asked_again(
    command: Command,
    generate: Command,
    engine: FakeEngine,
    jsonl: Any,
    tmp_path: Path,
    written: Any,
) -> None:
    ask = (jsonl(HI), "-o", tmp_path / "out.jsonl")
    generate(*ask, "--brief")
    assert "options" not in written(tmp_path / "out.jsonl")[0]
    command("export", tmp_path / "out.jsonl.job", "-o", tmp_path / "brief.jsonl")
    assert written(tmp_path / "brief.jsonl") == written(tmp_path / "out.jsonl")
    asked = len(engine.calls)
    generate(*ask)
    (line,) = written(tmp_path / "out.jsonl")
    assert line["token_ids"] == list(b"Hello END of it")
    assert len(engine.calls) == asked


def test_stdin_to_stdout_with_blank_lines_and_no_ids(generate: Command) -> None:
    ran = generate("-", "-o", "-", stdin=b'{"prompt": "a"}\n\n{"prompt": "b"}')
    assert [line["id"] for line in ran.out] == ["1", "3"]


# B3
def test_no_lines_give_no_lines_and_no_call(
    generate: Command, engine: FakeEngine, jsonl: Any
) -> None:
    ran = generate(jsonl())
    assert (ran.code, ran.out, engine.calls) == (0, [], [])


# Options


def test_a_line_wins_over_flags_and_flags_over_the_file(
    generate: Command, engine: FakeEngine, jsonl: Any, tmp_path: Path
) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("top_k: 1\nmax_new_tokens: 1\nseed: 1\nstrip_whitespace: true\n")
    source = jsonl({**HI, "options": {"top_k": 3}})
    generate(source, "--options", file, "--max-new-tokens", "2", "--top-k", "2")
    options = said(engine)
    assert (options.top_k, options.max_new_tokens, options.seed) == (3, 2, 1)
    assert options.decode is not None
    assert options.decode.strip_whitespace is True


def test_every_kind_of_flag_reaches_the_engine(
    generate: Command, engine: FakeEngine, jsonl: Any
) -> None:
    flags = [
        *("--stop", r"\n\n", "--stop", r"\boxed\\n", "--stop-token-ids", "5"),
        *("--stop-token-ids", "6", "--no-skip-special-tokens", "--enable-thinking"),
    ]
    flags += [
        *("--temperature", "0.5", "--min-pixels", "3", "--control-tokens", "ALLOW"),
        *("--template-kwargs", '{"a": [1]}', "--logprobs"),
    ]
    generate(jsonl(HI), *flags)
    options = said(engine)
    assert options.stop == pg.StopOptions(
        stop=("\n\n", r"\boxed\n"), stop_token_ids=(5, 6), ignore_eos=False
    )
    assert (
        options.decode.skip_special_tokens,
        options.chat.enable_thinking,
        options.chat.control_tokens,
    ) == (False, True, "allow")  # type: ignore[union-attr]
    assert (options.temperature, options.preprocess.min_pixels, options.logprobs) == (0.5, 3, True)  # type: ignore[union-attr]
    assert options.chat.template_kwargs == {"a": (1,)}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("flags", "value"),
    [
        ([], False),
        (["--logprobs"], True),
        (["--logprobs", "raw"], True),
        (["--logprobs", "processed"], "processed"),
        (["--logprobs=processed"], "processed"),
        (["--logprobs", "no"], False),
        (["--logprobs", "--no-logprobs"], False),
    ],
)
def test_an_option_that_is_on_off_or_a_word_is_a_flag_with_and_without_a_word(
    generate: Command, engine: FakeEngine, jsonl: Any, flags: list[str], value: object
) -> None:
    generate(*flags, jsonl(HI))
    assert said(engine).logprobs == value


def test_a_wrong_word_after_such_a_flag_is_bad_usage(generate: Command, jsonl: Any) -> None:
    done = generate(jsonl(HI), "--logprobs=own")
    assert done.code == 2
    assert "--logprobs: " in done.err
    assert "'raw' or 'processed'" in done.err


# C8
def test_the_options_of_a_line_sent_again_give_the_same_call(
    generate: Command, engine: FakeEngine, jsonl: Any
) -> None:
    (first,) = generate(
        jsonl(HI), "--stop", "END", "--seed", "3", "--enable-thinking", "--top-k", "4"
    ).out
    before = said(engine)
    (again,) = generate(jsonl({**HI, "options": first["options"]})).out
    assert said(engine) == before
    assert again == first


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--temprature", "0.2"], ["--temprature", "--temperature"]),  # C1
        (["--temperature", "-1"], ["--temperature", "a number of at least 0"]),  # C2
        (["--temperature", "nan"], ["--temperature", "not nan"]),
        (["--top-p", "0"], ["--top-p", "above 0 and at most 1"]),
        (["--max-new-tokens", "12.9"], ["--max-new-tokens", "integer"]),
        (["--max-new-tokens", "-1"], ["--max-new-tokens", "at least 0"]),
        (["--seed", "x"], ["--seed", "integer"]),
        (["--stop", ""], ["--stop", "position 0"]),
        (["--control-tokens", "txt"], ["--control-tokens", "did you mean 'text'"]),
        (["--template-kwargs", "{"], ["--template-kwargs", "Expecting property name"]),
        (["--template-kwargs", "[1]"], ["--template-kwargs", "a mapping"]),
        (["--min-pixels", "9", "--max-pixels", "3"], ["min_pixels of at most max_pixels"]),  # P2
        (["--dtype", "nn"], ["--dtype", "bfloat16"]),  # C7
        (["--variant", "vision"], ["--variant", "'vlm'"]),  # C3
        (["--batch-size", "0"], ["--batch-size", "at least 1"]),
        (["--image-memory-bytes", "-1"], ["--image-memory-bytes", "at least 0"]),
        (["--in-flight", "0"], ["--in-flight"]),
        (["--image-root", "/no/such/folder"], ["--image-root"]),
        (["--allow-host", "localhost"], ["--allow-host", "--allow-http"]),
        (["--prompt", "x"], ["--prompt", "folder of images"]),
        (["--sidecar", "txt"], ["--sidecar"]),
        (["--sidecar", "xml"], ["--sidecar", "txt or json"]),
        (["--options", "/nowhere.yaml"], ["--options", "/nowhere.yaml"]),
    ],
)
def test_a_bad_flag_is_bad_usage_and_is_named(
    generate: Command, engine: FakeEngine, jsonl: Any, flags: list[str], words: list[str]
) -> None:
    ran = generate(jsonl(HI), *flags)
    assert ran.code == 2
    assert all(word in ran.err for word in words), ran.err
    assert engine.calls == []


@pytest.mark.parametrize("name", ["options.json", "options.yaml"])
# C1
def test_a_bad_option_in_the_file_is_bad_usage_and_is_named_with_its_place(
    generate: Command, jsonl: Any, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_text('{"temprature": 0.2}')
    ran = generate(jsonl(HI), "--options", tmp_path / name)
    assert ran.code == 2
    assert name in ran.err
    assert "did you mean 'temperature'" in ran.err


def test_a_bad_option_in_a_line_fails_that_line(generate: Command, jsonl: Any) -> None:  # C1
    ran = generate(jsonl({**HI, "options": {"temprature": 1}}, {**HI, "options": {"top_p": 5}}, HI))
    assert [line["ok"] for line in ran.out] == [False, False, True]
    assert (
        "line 1: options: there is no option 'temprature'; did you mean 'temperature'?"
        in ran.out[0]["error"]["message"]
    )
    assert "line 2" in ran.out[1]["error"]["message"]
    assert ran.code == 1


def test_a_line_that_contradicts_the_flags_fails_alone(generate: Command, jsonl: Any) -> None:
    ran = generate(jsonl({**HI, "options": {"min_new_tokens": 9}}, HI), "--max-new-tokens", "3")
    assert [line["ok"] for line in ran.out] == [False, True]


def test_a_model_that_is_not_there_is_bad_usage_and_leaves_the_old_results(
    capsys: pytest.CaptureFixture[str], jsonl: Any, tmp_path: Path
) -> None:
    from pipegen.cli import main

    out = tmp_path / "out.jsonl"
    out.write_text("precious\n")
    with pytest.raises(SystemExit) as leaving:
        main(
            [
                *("generate", str(jsonl(HI)), "-o", str(out), "--overwrite"),
                *("--model", str(tmp_path / "no-model")),
            ]
        )
    assert leaving.value.code == 2
    assert "no-model" in capsys.readouterr().err
    assert out.read_text() == "precious\n"


# Images


# P8
def test_images_are_the_same_from_path_file_url_and_data_url(
    generate: Command, jsonl: Any, tmp_path: Path
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.png").write_bytes(b"some image")
    data = "data:image/png;base64," + base64.b64encode(b"some image").decode()
    sources = [
        "sub/a.png",
        str(tmp_path / "sub" / "a.png"),
        (tmp_path / "sub" / "a.png").as_uri(),
        data,
    ]
    lines = [{"prompt": "What?", "images": [source]} for source in sources]
    parts = [
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": source}}]}
            ]
        }
        for source in sources
    ]
    ran = generate(jsonl(*lines, *parts))
    assert len({tuple(line["image_digests"]) for line in ran.out}) == 1
    assert ran.code == 0


def test_relative_paths_start_at_the_current_folder_for_stdin(
    generate: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(b"some image")
    monkeypatch.chdir(tmp_path)
    assert generate("-", stdin=b'{"prompt": "What?", "images": ["a.png"]}').code == 0


# P8
def test_with_a_root_paths_start_there_and_nothing_gets_out(
    generate: Command, jsonl: Any, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "in.png").write_bytes(b"in")
    (tmp_path / "out.png").write_bytes(b"out")
    (root / "link.png").symlink_to(tmp_path / "out.png")
    sources = [
        "in.png",
        "../out.png",
        "link.png",
        str(tmp_path / "out.png"),
        (tmp_path / "out.png").as_uri(),
    ]
    ran = generate(
        jsonl(*({"prompt": "What?", "images": [source]} for source in sources)),
        "--image-root",
        root,
    )
    assert [line["ok"] for line in ran.out] == [True, False, False, False, False]


# P8
def test_http_is_refused_unless_allowed_and_private_hosts_even_then(
    generate: Command, jsonl: Any
) -> None:
    source = jsonl({"prompt": "What?", "images": ["http://127.0.0.1:9/a.png"]})
    assert "allow_http" in generate(source).out[0]["error"]["message"]
    assert generate(source, "--allow-http").out[0]["error"]["type"] == "BadImage"


def test_flags_raise_what_a_line_may_ask_for(generate: Command, jsonl: Any) -> None:
    source = jsonl({**HI, "options": {"samples": 1025}}, HI)
    refused = generate(source, "--brief")
    seen = (refused.code, refused.out[0]["error"]["message"], refused.out[1]["ok"])
    assert seen == (1, "samples is 1025; the limit is 1024", True)
    assert generate(source, "--brief", "--limit", "max_samples=1025").code == 0


def test_a_line_brings_no_template_and_the_run_does(generate: Command, jsonl: Any) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    refused = generate(jsonl({"messages": messages, "options": {"template": "{{ 1 }}"}}))
    assert "with the options of the run (--template)" in refused.out[0]["error"]["hint"]
    assert generate(jsonl({"messages": messages}), "--template", "{{ messages }}").code == 0


@pytest.mark.parametrize("said", ["max_samples", "max_samples=x", "max_sample=3", "max_samples=0"])
def test_a_limit_that_is_none_is_bad_usage(generate: Command, jsonl: Any, said: str) -> None:
    ran = generate(jsonl(HI), "--limit", said)
    assert ran.code == 2
    assert "--limit" in ran.err
