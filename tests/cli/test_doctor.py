"""`pipegen doctor`: what is there, what runs, and what to install."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from pipegen import embedded
from pipegen.cli import main
from pipegen.cli.doctor import examine
from pipegen.core.distribution import DISTRIBUTION, install_command, install_hint
from pipegen.engines.capabilities import ENGINES, FEATURES
from pipegen.records.options import option_names


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    with pytest.raises(SystemExit) as leaving:
        main(["doctor", *arguments])
    return leaving.value.code, capsys.readouterr().out


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with pipegen and nothing else."""
    real = metadata.version

    def version(package: str) -> str:
        if package != DISTRIBUTION:
            raise metadata.PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr(metadata, "version", version)


def test_the_versions_of_packages_that_jobs_use_are_shown() -> None:
    shown = examine()["packages"]
    assert shown["pyarrow"] == metadata.version("pyarrow")
    assert "ray" in shown


# C5
def test_the_table_of_what_each_engine_honours_is_printed_whole(
    capsys: pytest.CaptureFixture[str], bare: None
) -> None:
    _, shown = doctor(capsys)
    rows = {
        line.split()[0]: line.split()[-len(ENGINES) :]
        for line in shown.splitlines()
        if line.split()
    }
    for name in (*FEATURES, *option_names()):
        assert (name, rows.get(name)) == (
            name,
            ["yes" if name in honours else "-" for honours in ENGINES.values()],
        )


def test_a_bare_machine_is_told_what_to_install(
    capsys: pytest.CaptureFixture[str], bare: None
) -> None:
    code, shown = doctor(capsys)
    assert code == 1
    assert install_hint("hf") in shown
    assert "torch is not installed" in shown


def test_json_says_the_same(capsys: pytest.CaptureFixture[str], bare: None) -> None:
    code, shown = doctor(capsys, "--json")
    seen = json.loads(shown)
    assert code == 1
    assert seen == examine()
    assert seen["engines"]["hf"] == {
        "runs": False,
        "missing": seen["extras"]["hf"],
        "untested": [],
        "install": install_command("hf"),
    }
    assert seen["devices"] == []
    assert seen["options"]["no_repeat_ngram_size"] == ["hf"]


def test_an_old_package_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("packaging")
    monkeypatch.setattr(metadata, "version", lambda package: "1.0")
    monkeypatch.setattr("pipegen.cli.doctor._devices", list)
    missing = examine()["engines"]["hf"]["missing"]
    assert any(words.startswith("transformers 1.0 is installed; it takes ") for words in missing)


REQUIRED = (
    "torch<2.15,>=2.8; extra == 'hf'",
    "transformers<5.25,>=5.16; extra == 'hf'",
    "peft<0.22,>=0.18; extra == 'peft'",
    "vllm<0.34,>=0.27; extra == 'vllm'",
    "aiohttp>=3.11; extra == 'online'",
    "transformers<5.25,>=5.16; extra == 'online'",
)


@pytest.fixture
def right_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first steps of the embedded model are right, without looking."""
    right = {"engine": "hf", "lengths": {}, "not_judged": [], "same": True, "because": None}
    monkeypatch.setattr("pipegen.cli.doctor._first_steps", lambda model: right)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, right_steps: None) -> dict[str, str]:
    """What is installed, by name; to be filled by a test."""
    packages: dict[str, str] = {}

    def version(package: str) -> str:
        if package not in packages:
            raise metadata.PackageNotFoundError(package)
        return packages[package]

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(metadata, "requires", lambda name: list(REQUIRED))
    monkeypatch.setattr("pipegen.cli.doctor._devices", list)
    return packages


def test_versions_among_those_that_were_tested_are_fine(
    capsys: pytest.CaptureFixture[str], installed: dict[str, str]
) -> None:
    installed |= {"torch": "2.13.0+cpu", "transformers": "5.24.1"}
    code, shown = doctor(capsys)
    assert code == 0
    assert "torch 2.13.0+cpu  fine: tested up to 2.14, and pipegen takes >=2.8,<2.15" in shown
    assert "transformers 5.24.1  fine: tested up to 5.24, and pipegen takes" in shown
    assert "(hf)  can run here" in shown
    assert "peft 0" not in shown  # not installed
    assert examine()["versions"]["peft"] == {
        "installed": None,
        "takes": ">=0.18,<0.22",
        "tested_up_to": "0.21",
        "verdict": None,
    }


def test_a_newer_version_than_those_that_were_tested_is_said_and_its_engine_does_not_count(
    capsys: pytest.CaptureFixture[str], installed: dict[str, str]
) -> None:
    installed |= {"torch": "2.13.0", "transformers": "5.25.0", "aiohttp": "3.14.5"}
    code, shown = doctor(capsys)
    assert code == 1
    newer = (
        "transformers 5.25.0 is newer than pipegen's tests, which were run up to 5.24; it takes"
        " >=5.16,<5.25"
    )
    assert "transformers 5.25.0  newer than tested: tested up to 5.24" in shown
    assert f"(hf)  not tested here: {newer}" in shown
    assert f"To get hf: {install_hint('hf')}  ({newer})" in shown
    seen = examine()
    assert seen["engines"]["hf"] == {
        "runs": False,
        "missing": [],
        "untested": [newer],
        "install": install_command("hf"),
    }
    assert seen["extras"]["online"] == [newer]


def test_a_newer_package_of_another_extra_leaves_the_engine_as_it_is(
    capsys: pytest.CaptureFixture[str], installed: dict[str, str]
) -> None:
    installed |= {"torch": "2.13.0", "transformers": "5.24.0", "peft": "0.22.0"}
    code, shown = doctor(capsys)
    assert code == 0
    assert "peft 0.22.0  newer than tested: tested up to 0.21" in shown
    assert "(hf)  can run here" in shown


@pytest.mark.parametrize(
    ("package", "version", "verdict", "tested"),
    [
        ("torch", "2.8.0", "fine", "2.14"),
        ("torch", "2.14.1", "fine", "2.14"),
        ("torch", "2.15.0", "newer than tested", "2.14"),
        ("torch", "3.0", "newer than tested", "2.14"),
        ("torch", "2.7.1", "older than the lowest", "2.14"),
        ("vllm", "0.33.0", "taken, not tested", "0.32"),
    ],
)
def test_a_version_is_judged_by_its_minor_number(
    package: str, version: str, verdict: str, tested: str, installed: dict[str, str]
) -> None:
    pytest.importorskip("packaging")
    installed |= {package: version}
    row = examine()["versions"][package]
    assert (row["verdict"], row["tested_up_to"]) == (verdict, tested)


def test_with_torch_an_engine_runs_here_and_a_device_is_named() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    seen = examine()
    assert seen["engines"]["hf"] == {
        "runs": True,
        "missing": [],
        "untested": [],
        "install": None,
    }
    assert seen["devices"][-1].startswith("cpu")
    assert seen["first_steps"]["same"] is True


def test_an_engine_whose_first_steps_are_wrong_cannot_run_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from pipegen.backends.hf import running_batch

    last = running_batch._last
    monkeypatch.setattr(running_batch, "_last", lambda *given: last(*given).flip(-1))
    code, shown = doctor(capsys)
    assert code == 1
    assert "(hf)  cannot run here: hf cannot load 'embedded': the first steps of Qwen3VL" in shown
    assert examine()["engines"]["hf"]["runs"] is False
    code, shown = doctor(capsys, "--model", "embedded", "--engine", "hf")
    assert code == 1
    assert "are not those of transformers' plain forward" in shown


def test_the_first_steps_of_a_model_are_checked_where_that_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from support.models import write_model

    folder = write_model(tmp_path / "llama", "llama")
    code, shown = doctor(capsys, "--model", str(folder), "--engine", "hf")
    assert code == 0
    assert "hf: its first steps have the logits of transformers' plain forward" in shown
    assert "same_text" not in examine(str(folder))["model"]


@pytest.mark.usefixtures("right_steps")
def test_a_model_is_told_with_the_dtype_that_every_engine_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    seen = examine("embedded")["model"]
    assert (seen["name"], seen["dtype"], seen["images"], seen["long_rope_after"]) == (
        "embedded",
        "float32",
        True,
        None,
    )
    _, shown = doctor(capsys, "--model", "embedded")
    assert (
        f"embedded  type {seen['type']}, dtype float32, context_length {seen['context_length']},"
        " images True" in shown
    )


@pytest.mark.usefixtures("right_steps")
def test_a_model_that_cannot_be_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["doctor", "--model", "/no/such/model"])
    assert leaving.value.code == 1
    assert "no checkpoint folder '/no/such/model'" in capsys.readouterr().err


def null_settings(folder: Path) -> None:
    (folder / "config.json").write_text("null")


def half_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-9])


def broken_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content")


def words_for_an_end_token(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": "x"}')


@pytest.mark.usefixtures("right_steps")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (null_settings, "config.json holds None, where a JSON object is expected"),
        (half_weights, "model.safetensors is not whole"),
        (broken_template, "chat_template.jinja"),
        (words_for_an_end_token, "generation_config.json"),
    ],
)
def test_a_broken_model_is_said_in_a_few_lines(
    change: Callable[[Path], None],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("transformers")
    shutil.copytree(embedded.path(), tmp_path / "model")
    change(tmp_path / "model")
    with pytest.raises(SystemExit) as leaving:
        main(["doctor", "--model", str(tmp_path / "model")])
    out, err = capsys.readouterr()
    assert (leaving.value.code, out) == (1, "")
    assert words in err
    assert len(err.splitlines()) <= 4


@pytest.mark.usefixtures("right_steps")
def test_a_model_whose_images_cannot_be_prepared_is_told_with_the_reason(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    shutil.copytree(embedded.path(), tmp_path / "model")
    (tmp_path / "model" / "preprocessor_config.json").write_text("{")
    seen = examine(str(tmp_path / "model"))["model"]
    assert not seen["images"]
    assert "preprocessor_config.json is no JSON" in seen["problem"]


@pytest.mark.parametrize(
    "arguments", [("--engine", "vllm"), ("--engine", "sglang", "--model", "embedded")]
)
def test_an_engine_is_compared_with_transformers_for_a_model_and_is_hf_or_vllm(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = doctor(capsys, *arguments)
    assert code == 2


@pytest.mark.usefixtures("right_steps")
@pytest.mark.parametrize(
    ("difference", "same"), [(None, True), (0.05, False), ("no small model", None)]
)
def test_it_is_said_whether_vllm_gives_the_text_of_transformers(
    difference: float | str | None,
    same: bool | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("transformers")
    from pipegen.backends.checkpoint.engine_parity import Differs
    from pipegen.backends.checkpoint.positions import Boundary
    from pipegen.backends.checkpoint.verdicts import CannotCheck
    from pipegen.backends.vllm import self_check

    def check_lengths(checkpoint: object) -> Differs | None:
        if isinstance(difference, str):
            raise CannotCheck(difference)
        return None if difference is None else Differs(Boundary("sliding_window", 512), difference)

    monkeypatch.setattr("pipegen.cli.doctor.need", lambda *_: None)
    monkeypatch.setattr(self_check, "check_lengths", check_lengths)
    code, shown = doctor(capsys, "--json", "--model", "embedded", "--engine", "vllm")
    seen = json.loads(shown)["model"]["same_text"]
    assert seen["same"] is same
    assert (code == 1) is (same is False)
    assert "beyond 512 tokens (sliding_window)" in str(seen["because"]) or same is not False
    _, shown = doctor(capsys, "--model", "embedded", "--engine", "vllm")
    assert {
        True: "the log probabilities of transformers",
        False: "another text",
        None: "not checked against",
    }[same] in shown


@pytest.mark.usefixtures("right_steps")
def test_a_length_beyond_which_vllm_is_not_compared_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("torch")
    from support.models import write_model

    from pipegen.backends.vllm import self_check

    folder = write_model(tmp_path / "llama", "llama")
    config = json.loads((folder / "config.json").read_text())
    scaled = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(config | {"rope_parameters": scaled}))
    monkeypatch.setattr("pipegen.cli.doctor.need", lambda *_: None)
    monkeypatch.setattr(self_check, "check_lengths", lambda checkpoint: None)
    asked = ("--model", str(folder), "--engine", "vllm")
    seen = json.loads(doctor(capsys, "--json", *asked)[1])["model"]["same_text"]
    assert seen["lengths"] == {}
    assert "max_position_embeddings" in seen["not_judged"][0]
    assert "use hf for such rows" in seen["not_judged"][0]
    _, shown = doctor(capsys, *asked)
    assert "not judged: beyond" in shown
    assert "also beyond" not in shown
