"""A folder, and a model named as on the hub, are read without transformers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

from pipegen import embedded
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.locate import ModelFiles
from pipegen.core.names import InvalidField
from pipegen.engines.settings import ModelLoadConfig

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REVISIONS = ("", COMMIT, "main")
SCRIPT = f"""
import json, os, sys
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.engines.settings import ModelLoadConfig

def facts(kept, model, revision=None):
    os.environ["XDG_CACHE_HOME"] = sys.argv[1] + "/kept" + kept
    try:
        made = Checkpoint(ModelLoadConfig(model=model, revision=revision))
        facts = made.eos_token_ids, made.bos_token, made.vocab_size, made.positions, made.dtype
        facts += made.tokenizer.encode("Hi"), made.renderer.template, made.renderer.rewrites
        facts += made.is_vision_model, made.pad_token_id, made.generation_config, made.has_weights
        return made.identity, str(facts)
    except Exception as raised:
        return type(raised).__name__, raised.error.message

def imported(*names):
    return [name for name in ("torch", "transformers", *names) if name in sys.modules]

folder = facts("folder", {str(embedded.path())!r})
for_folder = imported("numpy", "huggingface_hub")
found = {{revision: facts(revision, "owner/model", revision or None) for revision in {REVISIONS}}}
for_names = imported()
other = facts("other", "owner/other")
print(json.dumps(dict(folder=folder, found=found, imported=[for_folder, for_names], other=other)))
"""


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What two processes, one after the other, read of a hub's cache that has the embedded model
    under a name. No revision knows what another has found.
    """
    hub = tmp_path_factory.mktemp("hub")
    model = hub / "hub" / "models--owner--model"
    shutil.copytree(embedded.path(), model / "snapshots" / COMMIT)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    environment = {"HF_HOME": str(hub), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", SCRIPT, str(hub)]
    return [
        json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout)
        for _ in range(2)
    ]


def test_folders_and_names_are_read_without_transformers(starts: Any) -> None:
    first, second = starts
    assert [*first["found"]] == [*REVISIONS]
    for start in starts:
        assert not {"torch", "transformers"}.intersection(*start["imported"])
    assert second["imported"][0] == []
    for name in ("folder", "found"):
        assert first[name] == second[name]


def test_a_name_has_the_identity_of_its_files(starts: Any) -> None:
    found, folder = starts[0]["found"], starts[0]["folder"]
    assert {tuple(facts) for facts in found.values()} == {tuple(folder)}


def test_a_model_that_is_not_here_is_refused_in_the_same_words(starts: Any) -> None:
    error, words = starts[0]["other"]
    assert error == "CallFailed"
    assert "'owner/other': the model is not on this machine, and the hub is not asked" in words


def test_a_revision_of_a_folder_is_refused_but_the_one_that_others_give_for_any_model(
    tmp_path: Path,
) -> None:
    for model, words in ((tmp_path, "is a folder"), ("embedded", "is the shipped model")):
        with pytest.raises(InvalidField, match=rf"\.revision: .* {words}, .*leave it out"):
            Checkpoint(ModelLoadConfig(model=model, revision="v1"))
        assert Checkpoint(ModelLoadConfig(model=model, revision="main")).load.revision == "main"


def test_a_file_that_a_folder_lacks_is_none_or_refused(tmp_path: Path) -> None:
    assert ModelFiles(str(tmp_path)).cached("config.json") is None
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        ModelFiles(str(tmp_path)).fetched("config.json")


def test_the_templates_of_a_name_are_brought_here_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *a, **b: asked.append((a, b)))
    ModelFiles(str(tmp_path)).fetch_templates()
    ModelFiles("owner/model", "main").fetch_templates()
    ((source,), settings) = asked[0]
    assert (len(asked), source, settings["revision"]) == (1, "owner/model", "main")
    assert "additional_chat_templates/*.jinja" in settings["allow_patterns"]
