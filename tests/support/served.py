"""A model without weights for tests of servers: what a `Checkpoint` knows, by the toy tokenizer; and
routes to servers of it.
"""

from __future__ import annotations

import hashlib
from typing import Any

from immutabledict import immutabledict
from returns.result import Failure, Success

from pipegen.backends.checkpoint.positions import Positions
from pipegen.core.errors import BadImage
from pipegen.core.slots import Slot
from pipegen.drivers.route import route
from pipegen.engines.settings import ModelLoadConfig, ServerSettings
from pipegen.records.messages import ImageSource
from pipegen.records.option_groups import VlmPreprocessOptions
from pipegen.records.results import PreparedImage, Prompt
from pipegen.testing.fake import ToyRenderer
from pipegen.testing.toy import ToyTokenizer

__all__ = ["ToyModel", "route_to"]


class _ToyModel:
    """The toy tokenizer and template as a model's light facts; images are one black pixel of three
    tokens. `sees=False` is a text model.
    """

    def __init__(self, *, sees: bool = True) -> None:
        self.identity, self.has_weights = "toy", True
        self.load = ModelLoadConfig(model="toy")
        self.tokenizer, self.renderer = ToyTokenizer(), ToyRenderer()
        self.vocab_size: int | None = self.tokenizer.vocab_size
        self.eos_token_ids: tuple[int, ...] = (self.tokenizer.special_tokens["<|im_end|>"],)
        self.bos_token: str | None = None
        self.image_placeholder: str | None = "<|image_pad|>" if sees else None
        self.image_token_id: int | None = (
            self.tokenizer.special_tokens["<|image_pad|>"] if sees else None
        )
        self.generation_config: immutabledict[str, Any] = immutabledict()
        self.positions = Positions()
        self.images_unsupported_reason = "" if sees else "the toy model is text-only"

    def check_server_resize(self, prompt: Prompt) -> None:
        """The toy images have one size."""

    def prepare_image(
        self, source: ImageSource, options: VlmPreprocessOptions, index: int
    ) -> Slot[PreparedImage]:
        """Any bytes are an image, unless they begin with `broken`."""
        data = source.data or b""
        if data.startswith(b"broken"):
            return Failure(BadImage(index))
        return Success(
            PreparedImage(
                width=1,
                height=1,
                rgb=bytes(3),
                digest=hashlib.sha256(data).hexdigest(),
                grid=(1, 2, 6),
                tokens=3,
            )
        )


ToyModel: Any = _ToyModel  # it stands in for a `Checkpoint`


def route_to(server: Any, wire: Any = "vllm", *, model: Any = None, **settings: Any) -> Any:
    """The route to a token server, or to a URL, with a wire of this name, or with this wire."""
    from pipegen.backends.http.access import access_to
    from pipegen.backends.servers.sending import Sender
    from pipegen.backends.servers.server import ServerEngine
    from pipegen.backends.servers.sglang_dialect import SGLANG
    from pipegen.backends.servers.vllm_dialect import VLLM

    sender = Sender(
        {"vllm": VLLM, "sglang": SGLANG}[wire] if isinstance(wire, str) else wire,
        access_to(
            getattr(server, "url", server), default="http://localhost:1", variable="NO_SUCH_KEY"
        ),
        ServerSettings(**settings),
        "toy",
    )
    return route(ServerEngine(sender, model or ToyModel()))
