"""An object for code that wants one: a thin façade over `run`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from pipegen.core.pipe import Pipe
from pipegen.core.slots import Batch
from pipegen.drivers.arguments import Options
from pipegen.drivers.batch import run
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.plain import Request
from pipegen.records.requests import GenerationRequest, ImagePolicy, RequestPolicy
from pipegen.records.results import GenerationResult

__all__ = ["GenerationEngine"]


class GenerationEngine(contextlib.AbstractContextManager["GenerationEngine"]):
    """A route (or the configuration of one) as an object with two methods; both give one slot for each request, in order.

    >>> from pipegen.core.pipe import pure
    >>> GenerationEngine(pure("echo", lambda request: request.prompt)).generate_text_batch([{"prompt": "Hi"}])
    (<Success: Hi>,)
    """

    def __init__(
        self,
        route: Pipe[GenerationRequest, GenerationResult] | ModelLoadConfig,
        *,
        image_policy: ImagePolicy | None = None,
        policy: RequestPolicy | None = None,
    ) -> None:
        if isinstance(route, ModelLoadConfig):
            from pipegen.backends import load

            route = load(route)
        if not isinstance(route, Pipe):
            raise TypeError(f"a GenerationEngine is made of a route or a ModelLoadConfig, not of {type(route).__name__}: ModelLoadConfig(model=...)")
        self.route, self.image_policy, self.policy = route, image_policy, policy

    def generate_text_batch(self, requests: Iterable[Request], options: Options | None = None) -> Batch[GenerationResult]:
        """Generate for requests without images."""
        return run(self.route, requests, options, image_policy=self.image_policy, policy=self.policy)

    def generate_vlm_batch(self, requests: Iterable[Request], options: Options | None = None) -> Batch[GenerationResult]:
        """Generate for requests with images."""
        return run(self.route, requests, options, image_policy=self.image_policy, policy=self.policy)

    def __exit__(self, *error: object) -> None:
        self.route.__exit__(*error)
