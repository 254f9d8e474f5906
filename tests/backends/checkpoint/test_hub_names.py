"""A model named as on the hub is found in the hub's cache, without transformers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from pipegen import embedded
from pipegen.backends.checkpoint.locate import cached, fetched

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "owner/model"
SCRIPT = """
import sys
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.engines.settings import ModelLoadConfig
made = Checkpoint(ModelLoadConfig(model="owner/model", revision=sys.argv[1] or None))
facts = made.eos_token_ids, made.bos_token, made.vocab_size, made.positions, made.dtype
print(made.identity, made.tokenizer.encode("Hi"), facts, made.renderer.template == "", made.has_weights)
print(sorted({"torch", "transformers"} & sys.modules.keys()))
"""


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A cache of the hub that has the embedded model under a name."""
    model = tmp_path / "hub" / "models--owner--model"
    shutil.copytree(embedded.path(), model / "snapshots" / COMMIT)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT)
    return tmp_path


def in_a_process(script: str, hub: Path, *arguments: str) -> str:
    environment = {
        "HF_HOME": str(hub),
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(hub / "kept"),
        "PYTHONPATH": ":".join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize("revision", ["", COMMIT, "main"])
def test_a_name_is_read_without_transformers_after_the_first_start(
    hub: Path, revision: str
) -> None:
    first, second = (in_a_process(SCRIPT, hub, revision).splitlines() for _ in range(2))
    assert first[0] == second[0]
    assert "transformers" in first[1]
    assert second[1] == "[]"


def test_a_name_has_the_identity_of_its_files(hub: Path) -> None:
    here = in_a_process(SCRIPT.replace("owner/model", str(embedded.path())), hub, "")
    assert in_a_process(SCRIPT, hub, "").split()[0] == here.split()[0]


def test_a_model_that_is_not_here_is_refused_in_the_same_words(hub: Path) -> None:
    script = """
from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.engines.settings import ModelLoadConfig
try:
    Checkpoint(ModelLoadConfig(model="owner/other")).identity
except Exception as raised:
    print(type(raised).__name__, raised.error.message)
"""
    words = in_a_process(script, hub)
    assert words.startswith("CallFailed ")
    assert "'owner/other': the model is not on this machine, and the hub is not asked" in words


def test_a_file_that_a_folder_lacks_is_none_or_refused(tmp_path: Path) -> None:
    assert cached(str(tmp_path), "config.json") is None
    with pytest.raises(FileNotFoundError, match=r"has no config\.json"):
        fetched(str(tmp_path), "config.json")
