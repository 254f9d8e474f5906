"""A vision model with the processor that trainers take. verl imports what Ray calls deprecated: it
is imported here, with these warnings left out.
"""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import pytest

with warnings.catch_warnings(), contextlib.suppress(ImportError):
    warnings.simplefilter("ignore")
    import verl.experimental.agent_loop.agent_loop  # noqa: F401


@pytest.fixture
def llava(tmp_path: Path) -> tuple[Path, Any]:
    """The folder of a small LLaVA, and its processor, which needs no torchvision."""
    from support.models import write_model
    from transformers import AutoImageProcessor, AutoTokenizer, LlavaProcessor

    folder = write_model(tmp_path / "llava", "llava")
    processors: Any = AutoImageProcessor
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = tokenizer.eos_token
    return folder, LlavaProcessor(
        processors.from_pretrained(folder, backend="pil"),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        chat_template=tokenizer.chat_template,
        num_additional_image_tokens=1,
    )
