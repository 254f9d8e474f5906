"""What vLLM raises, and what it means: a refusal is of one request, a death of the whole engine."""

# vLLM need not be installed where types are checked.
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

__all__ = ["deaths", "refusals"]


def refusals() -> tuple[type[Exception], ...]:
    """What vLLM raises when it does not take one request; its own hierarchy stands beside ValueError in the versions that have one."""
    from vllm import exceptions  # the module: which classes it has depends on the version

    own = (getattr(exceptions, name, None) for name in ("VLLMClientError", "VLLMValidationError"))
    return (ValueError, *(kind for kind in own if kind is not None))


def deaths() -> tuple[type[Exception], ...]:
    """What vLLM raises when a step failed, and with it the engine."""
    import torch
    from vllm import exceptions
    from vllm.v1.engine import exceptions as engine_exceptions

    own = (getattr(exceptions, "VLLMServerError", None), engine_exceptions.EngineDeadError, engine_exceptions.EngineGenerateError)
    return (*(kind for kind in own if kind is not None), torch.OutOfMemoryError, torch.AcceleratorError)
