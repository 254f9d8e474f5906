"""As much of Ray as `pipegen generate --replicas` calls, in this process: its actors are objects
whose calls run in threads, so that a test may break one and look into another.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from concurrent import futures
from types import SimpleNamespace
from typing import Any

import pytest

__all__ = ["FakeRay", "replaced_ray"]


class Died(Exception):
    """What Ray raises where an actor cannot go on, or a call raised."""

    cause: Exception | None = None


class FakeRay:
    """Actors are made of the class that pipegen gives, or of `kind`."""

    exceptions = SimpleNamespace(RayError=Died)

    def __init__(self, kind: Any = None) -> None:
        self.actors: list[Any] = []
        self._kind, self._threads = kind, futures.ThreadPoolExecutor(64)

    def remote(self, **how: Any) -> Any:
        return lambda kind: SimpleNamespace(remote=lambda *given: self._made(kind, *given))

    def _made(self, kind: Any, *given: Any) -> Any:
        self.actors.append((self._kind or kind)(*given))
        actor = self.actors[-1]

        def called(name: str) -> Any:
            return lambda *given: self._threads.submit(_call, getattr(actor, name), *given)

        return SimpleNamespace(
            **{
                name: SimpleNamespace(remote=called(name))
                for name in ("ready", "answer", "seen", "close")
            }
        )

    def wait(
        self, refs: Sequence[Any], *, num_returns: int, timeout: float, fetch_local: bool = True
    ) -> tuple[list[Any], list[Any]]:
        futures.wait(refs, timeout, futures.FIRST_COMPLETED)
        done = [ref for ref in refs if ref.done()][:num_returns]
        return done, [ref for ref in refs if ref not in done]

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        try:
            return refs.result(timeout)
        except Died:
            raise
        except Exception as cause:
            died = Died(str(cause))
            died.cause = cause
            raise died from cause

    def kill(self, handle: Any) -> None:
        pass

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0}

    available_resources = cluster_resources


def _call(method: Any, *given: Any) -> Any:
    made = method(*given)
    return asyncio.run(made) if inspect.iscoroutine(made) else made


def replaced_ray(monkeypatch: pytest.MonkeyPatch, kind: Any = None) -> FakeRay:
    """A `FakeRay` in the place of Ray."""
    ray = FakeRay(kind)
    monkeypatch.setattr("pipegen.jobs.ray_actors.itself", lambda: ray)
    monkeypatch.setattr("pipegen.jobs.ray_actors.connect", lambda *address, **how: lambda: None)
    return ray
