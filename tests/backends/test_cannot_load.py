"""A model that cannot be loaded is one typed failure in every slot, or is refused at construction:
it names the model, the file and what to do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.models import write_model

import pipegen as pg
from pipegen.backends.checkpoint.file_digests import identity_of
from pipegen.backends.checkpoint.load_errors import broken_file, weight_files
from pipegen.cli import main
from pipegen.core.errors import CallFailed
from pipegen.records.fields import UnknownField
from pipegen.testing.fake import FakeEngine

pytest.importorskip("torch")

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12345\n"
HUNDRED = [{"prompt": "Hi", "options": {"max_new_tokens": 1}}] * 100
Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "whole", "qwen3")


def cut(name: str, size: int) -> Change:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def pointer(name: str) -> Change:
    return lambda folder: (folder / name).write_text(POINTER)


def without(*names: str) -> Change:
    return lambda folder: [(folder / name).unlink() for name in names]


def sharded(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {
        "metadata": {},
        "weight_map": {
            "model.norm.weight": "model-1.safetensors",
            "lm_head.weight": "model-2.safetensors",
        },
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


BROKEN: dict[str, tuple[Change, str, str]] = {
    "weights cut short": (
        cut("model.safetensors", 5000),
        "model.safetensors is not whole: it has 5000 of ",
        "fetch the file again",
    ),
    "no header": (
        cut("model.safetensors", 3),
        "model.safetensors is not whole: it has 3 bytes",
        "fetch the file again",
    ),
    "empty weights": (
        cut("model.safetensors", 0),
        "model.safetensors is not whole: it has 0 bytes",
        "fetch the file again",
    ),
    "weights of git-lfs": (
        pointer("model.safetensors"),
        "model.safetensors is a pointer of git-lfs",
        "git lfs pull",
    ),
    "tokenizer of git-lfs": (
        pointer("tokenizer.json"),
        "tokenizer.json is a pointer of git-lfs",
        "git lfs pull",
    ),
    "configuration of git-lfs": (
        pointer("config.json"),
        "config.json is a pointer of git-lfs",
        "git lfs pull",
    ),
    "configuration cut short": (
        cut("config.json", 50),
        "config.json is no JSON, or not whole",
        "fetch the file again",
    ),
    "generation settings cut short": (
        cut("generation_config.json", 5),
        "generation_config.json is no JSON, or not whole",
        "fetch the file again",
    ),
    "no tokenizer": (without("tokenizer.json"), "cannot read the tokenizer of", "tokenizer.json"),
    "no tokenizer at all": (
        without("tokenizer.json", "tokenizer_config.json"),
        "the tokenizer's files are missing",
        "tokenizer.json",
    ),
    "no weights": (without("model.safetensors"), "model.safetensors", "log"),
    "no configuration": (without("config.json"), "cannot read the configuration of", "config.json"),
    "weights of a missing part": (
        sharded,
        "model-2.safetensors is missing",
        "fetch the whole model again",
    ),
}


@pytest.fixture
def broken(whole: Path, tmp_path: Path) -> Callable[[Change], Path]:
    def made(change: Change) -> Path:
        shutil.copytree(whole, tmp_path / "model")
        change(tmp_path / "model")
        return tmp_path / "model"

    return made


def failure_of(
    route: pg.Route, requests: Any = ({"prompt": "Hi"}, {"prompt": "Hi"})
) -> pg.BackendFailed:
    """The one failure of all slots, which the next route of a fallback sees."""
    slots = pg.run(route, requests, pg.GenerationOptions(max_new_tokens=2))
    errors = {slot.failure() for slot in slots}
    assert len(errors) == 1
    (error,) = errors
    assert isinstance(error, pg.BackendFailed)
    after = pg.run(
        pg.fallback(route, pg.route(FakeEngine("well")), when=pg.BackendFailed),
        requests,
        pg.GenerationOptions(max_new_tokens=9),
    )
    assert [slot.unwrap().text for slot in after] == ["well"] * len(requests)
    return error


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_is_one_failure_that_names_model_and_file(
    case: str, broken: Callable[[Change], Path], caplog: pytest.LogCaptureFixture
) -> None:
    change, words, hint = BROKEN[case]
    folder = broken(change)
    with caplog.at_level(logging.ERROR, logger="pipegen"):
        error = failure_of(pg.backends.hf(folder))
    assert str(folder) in error.message
    assert words in error.message
    assert hint in error.hint
    assert (error.backend, error.scope) == ("hf", "batch")
    assert "\n" not in error.message
    record = next(record for record in caplog.records if error.incident in record.getMessage())
    assert record.exc_info is not None  # the traceback is in the log


@pytest.mark.parametrize(
    "change", [without("config.json"), without("tokenizer.json"), cut("model.safetensors", 5000)]
)
def test_a_run_says_it_once_however_many_requests_it_has(
    change: Change, broken: Callable[[Change], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with pg.backends.hf(broken(change)) as route:
        for slots in (
            lambda: pg.run(route, HUNDRED),
            lambda: list(pg.imap(route, HUNDRED)),
            lambda: asyncio.run(pg.arun(route, HUNDRED)),
        ):
            caplog.clear()
            with caplog.at_level(logging.ERROR, logger="pipegen"):
                incidents = {slot.failure().incident for slot in slots()}
            assert len(incidents) == len(caplog.records) == 1


def test_stages_that_no_run_holds_read_a_mended_model_at_once(
    broken: Callable[[Change], Path], whole: Path
) -> None:
    folder = broken(without("tokenizer.json"))
    route = pg.backends.hf(folder)
    resolve = pg.stages.resolve(route.engine)
    asked = (pg.Success(pg.TextGenerationRequest(prompt="Hi")),)
    failure_of(route)
    assert not pg.is_ok(resolve.apply(asked)[0])
    shutil.copy(whole / "tokenizer.json", folder)
    assert pg.is_ok(resolve.apply(asked)[0])
    assert pg.is_ok(pg.run(route, [{"prompt": "Hi"}], {"max_new_tokens": 1})[0])


@pytest.mark.parametrize("constructor", [pg.backends.vllm_server, pg.backends.sglang_server])
def test_a_token_server_needs_the_tokenizer_here(
    constructor: Any, broken: Callable[[Change], Path]
) -> None:
    pytest.importorskip("aiohttp")
    route = constructor(str(broken(without("tokenizer.json"))), base_url="http://127.0.0.1:9")
    assert "cannot read the tokenizer of" in failure_of(route).message


def test_a_hub_model_that_is_not_there_is_one_failure() -> None:
    error = failure_of(pg.backends.hf("nobody/no-such-model"))
    assert "'nobody/no-such-model'" in error.message
    assert "HF_TOKEN" in error.hint
    assert "did you mean" not in error.hint
    assert "did you mean 'embedded'?" in failure_of(pg.backends.hf("embeded")).hint
    with pytest.raises(CallFailed, match="no-such-model"):
        pg.backends.load(pg.ModelLoadConfig(model="nobody/no-such-model"))


@pytest.mark.parametrize("offline", [True, False])
def test_a_hub_that_is_not_reached_is_a_message_without_tracebacks(
    offline: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    def unreached(*arguments: object, **more: object) -> None:
        raise OSError("We couldn't connect to the hub") from LocalEntryNotFoundError("no")

    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", unreached)
    # a real download is tried again and again, with pauses
    for place in ("huggingface_hub", "transformers.utils.hub"):
        monkeypatch.setattr(f"{place}.hf_hub_download", unreached)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    error = failure_of(route := pg.backends.hf("nobody/no-such-model"))
    why = "is not asked (HF_HUB_OFFLINE)" if offline else "cannot be reached"
    assert error.message.endswith(f"the model is not on this machine, and the hub {why}")
    assert error.hint.startswith("fetch it where there is a network (hf download NAME); give the")
    assert not any(record.exc_info for record in caplog.records)
    with pytest.raises(CallFailed) as raised:
        _ = route.engine.capabilities
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_a_setting_that_contradicts_the_model_is_one_failure(whole: Path) -> None:
    assert "is a text model" in failure_of(pg.backends.hf(whole, variant="vlm")).message


def test_counting_tokens_says_it_too(broken: Callable[[Change], Path]) -> None:
    route = pg.backends.hf(broken(without("tokenizer.json")))
    assert isinstance(pg.count_tokens(route, {"prompt": "Hi"}).failure(), pg.BackendFailed)


def test_attaching_a_plugin_says_it_too(broken: Callable[[Change], Path]) -> None:
    route = pg.backends.hf(broken(without("config.json")))
    with pytest.raises(pg.BackendFailed):
        pg.attach(route, pg.plugins.balanced_json())


def test_what_from_pretrained_does_not_take_is_named(whole: Path) -> None:
    error = failure_of(pg.backends.hf(whole, engine_kwargs={"foo": 1}))
    assert "'foo'" in error.message
    assert error.hint.startswith("engine_kwargs are arguments of from_pretrained")
    assert (
        "attn_implementation"
        in failure_of(pg.backends.hf(whole, attn_implementation="foo")).message
    )


@pytest.mark.parametrize(
    "name",
    [
        *("dtype", "torch_dtype", "device_map", "revision", "trust_remote_code"),
        *("output_loading_info", "config"),
    ],
)
def test_what_pipegen_says_itself_is_refused_at_construction(name: str) -> None:
    with pytest.raises(pg.InvalidField, match=f"engine_kwargs takes no '{name}'"):
        pg.backends.hf("embedded", engine_kwargs={name: None})


@pytest.mark.parametrize("field", ["device", "device_map"])
@pytest.mark.parametrize("device", ["cuda", "cuda:7", "gpu", "mps:9", "meta", "cpu:0:0"])
def test_a_device_that_is_not_here_is_refused_at_construction(
    field: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    pytest.importorskip("accelerate")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(pg.InvalidField, match=f"ModelLoadConfig.{field}.*'{device}'"):
        pg.backends.hf("embedded", **{field: device})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"torch_dtype": "float32"}, "did you mean 'dtype'"),
        ({"batchsize": 8}, "did you mean 'batch_size'"),
        ({"foo": 1}, "go to engine_kwargs"),
    ],
)
def test_a_setting_that_there_is_none_of_is_refused_with_the_nearest(
    settings: dict[str, Any], words: str
) -> None:
    for constructor in (pg.backends.hf, pg.backends.vllm):
        if "batchsize" in settings and constructor is pg.backends.vllm:
            continue
        # an InvalidField, and a TypeError
        with pytest.raises(UnknownField, match=f"Settings has no field.*{words}"):
            constructor("embedded", **settings)


def test_a_file_is_no_checkpoint_and_a_gguf_is_named_as_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    (tmp_path / "file").mkdir()
    (tmp_path / "file" / "model.bin").write_bytes(b"")
    for name in (str(tmp_path / "model.gguf"), "no/such.gguf", "such.GGUF"):
        with pytest.raises(pg.InvalidField, match="GGUF files are not read"):
            pg.backends.hf(name)
    with pytest.raises(pg.InvalidField, match="it is a file"):
        pg.backends.hf(tmp_path / "file" / "model.bin")
    assert "GGUF files are not read" in failure_of(pg.backends.hf(tmp_path)).hint


def test_an_adapter_that_is_none_is_refused(whole: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    for adapter in ("/no/such", "./no", whole):
        with pytest.raises(pg.InvalidField, match="is no adapter"):
            pg.backends.hf(whole, adapter=adapter)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert str(tmp_path) in failure_of(pg.backends.hf(whole, adapter=tmp_path)).message
    said = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 2,
        "lora_alpha": 2,
        "target_modules": ["q_proj"],
    }
    (tmp_path / "adapter_config.json").write_text(json.dumps(said))
    (tmp_path / "adapter_model.safetensors").write_text(POINTER)
    assert (
        "adapter_model.safetensors is a pointer of git-lfs"
        in failure_of(pg.backends.hf(whole, adapter=tmp_path)).message
    )


def test_a_model_that_is_mended_loads_at_the_next_call(
    broken: Callable[[Change], Path], whole: Path
) -> None:
    folder = broken(cut("model.safetensors", 5000))
    route = pg.backends.hf(folder)
    failure_of(route)
    shutil.copy(whole / "model.safetensors", folder)
    assert pg.is_ok(pg.run(route, [{"prompt": "Hi"}], pg.GenerationOptions(max_new_tokens=1))[0])


@pytest.mark.parametrize(
    "change", [cut("model.safetensors", 5000), without("tokenizer.json"), without("config.json")]
)
def test_the_command_line_says_it_in_a_few_lines(
    change: Change,
    broken: Callable[[Change], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "Hi"}\n')
    with pytest.raises(SystemExit) as leaving:
        main(
            [
                "generate",
                str(tmp_path / "in.jsonl"),
                *("--model", str(broken(change)), "--max-new-tokens", "2"),
            ]
        )
    assert leaving.value.code in (1, 2)
    shown = "".join(capsys.readouterr())
    assert "Traceback" not in shown
    assert len(shown.splitlines()) < 15
    assert str(tmp_path / "model") in re.sub(r"[\s│]", "", shown)


def test_only_the_files_that_are_read_must_be_whole(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "model")
    (tmp_path / "model" / "pytorch_model.bin").write_text(POINTER)
    assert broken_file(weight_files(tmp_path / "model")) is None
    sharded(tmp_path / "model")
    found = broken_file(weight_files(tmp_path / "model"))
    assert found is not None
    assert found.words.endswith("model-2.safetensors is missing")
    (tmp_path / "model" / "model.safetensors.index.json").write_text("[]")
    assert weight_files(tmp_path / "model") == [tmp_path / "model" / "model.safetensors.index.json"]
    assert weight_files(tmp_path) == []


@pytest.mark.parametrize(
    "offsets",
    ["[0, 1e999]", "[0, 1%s]" % ("0" * 30), "[-500, 8]", "[9, 8]", '["0", "8"]', "[0.5, 8]"],
)
def test_tensors_that_are_nowhere_in_the_file_are_seen(offsets: str, tmp_path: Path) -> None:
    header = b'{"a":{"dtype":"U8","shape":[8],"data_offsets":%s}}' % offsets.encode()
    file = tmp_path / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"12345678")
    broken = broken_file([file])
    assert broken is not None and "model.safetensors is not whole" in broken.words
    assert len(identity_of(tmp_path)) == 32


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x03\x04 cut short",
        (8).to_bytes(8, "little") + b"[]      ",
        (2).to_bytes(8, "little") + b"[]",
        b"\xff" * 20,
    ],
)
def test_other_files_that_are_not_whole_are_seen(content: bytes, tmp_path: Path) -> None:
    name = "model.bin" if content.startswith(b"PK") else "model.safetensors"
    (tmp_path / name).write_bytes(content)
    assert broken_file([tmp_path, tmp_path / name]) is not None
