"""Engines that are right in the plain case and lie beside it: the suite finds each, and names the
option.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import pipegen as pg
from pipegen.records.results import Encoded
from pipegen.testing import conformance, conformance_sampling


def with_options(encoded: Encoded, **changed: Any) -> Encoded:
    return dataclasses.replace(encoded, options=dataclasses.replace(encoded.options, **changed))


def answered(encoded: Encoded, slot: Any) -> Any:
    """The slot as that of the request as it was asked."""
    return slot.map(lambda raw: dataclasses.replace(raw, encoded=encoded))


def first_stop_only(model: Any) -> Any:
    class FirstStop(model):  # type: ignore[misc]
        """Halts at the first stop token of several."""

        def _made(self, encoded: Encoded) -> Any:
            stop = encoded.options.stop
            seen = with_options(
                encoded, stop=dataclasses.replace(stop, stop_token_ids=stop.stop_token_ids[:1])
            )
            return answered(encoded, super()._made(seen))

    return FirstStop()


def one_kind_of_stop(model: Any) -> Any:
    class OneKind(model):  # type: ignore[misc]
        """Looks for no stop string where stop tokens are asked for too."""

        def _made(self, encoded: Encoded) -> Any:
            stop = encoded.options.stop
            seen = with_options(
                encoded,
                stop=dataclasses.replace(stop, stop=() if stop.stop_token_ids else stop.stop),
            )
            return answered(encoded, super()._made(seen))

    return OneKind()


def logprobs_of_the_likeliest(model: Any) -> Any:
    class Likeliest(model):  # type: ignore[misc]
        """Gives for each drawn token the log probability of the likeliest one."""

        def _made(self, encoded: Encoded) -> Any:
            def lied(raw: Any) -> Any:
                best = [
                    dataclasses.replace(
                        entry, logprob=entry.top[0][1] if entry.top else entry.logprob
                    )
                    for entry in raw.logprobs or ()
                ]
                return dataclasses.replace(
                    raw, logprobs=tuple(best) if raw.logprobs is not None else None
                )

            return super()._made(encoded).map(lied)

    return Likeliest()


def zero_is_no_seed(model: Any) -> Any:
    class Falsy(model):  # type: ignore[misc]
        """Takes a seed of 0 for none."""

        def chosen(self, encoded: Encoded, ids: Sequence[int], logits: Mapping[int, float]) -> int:
            return int(
                super().chosen(
                    with_options(encoded, seed=encoded.options.seed or None), ids, logits
                )
            )

    return Falsy()


def short_seed(model: Any) -> Any:
    class Short(model):  # type: ignore[misc]
        """Looks at the lowest 31 bits of a seed."""

        def chosen(self, encoded: Encoded, ids: Sequence[int], logits: Mapping[int, float]) -> int:
            seed = encoded.options.seed
            return int(
                super().chosen(
                    with_options(encoded, seed=None if seed is None else seed % 2**31), ids, logits
                )
            )

    return Short()


def one_filter(model: Any) -> Any:
    class OneFilter(model):  # type: ignore[misc]
        """Ignores `top_p` beside `top_k`."""

        def chosen(self, encoded: Encoded, ids: Sequence[int], logits: Mapping[int, float]) -> int:
            seen = with_options(encoded, top_p=1.0) if encoded.options.top_k else encoded
            return int(super().chosen(seen, ids, logits))

    return OneFilter()


def logprobs_of_the_first_row(model: Any) -> Any:
    class FirstRow(model):  # type: ignore[misc]
        """Gives logprobs as the first row of the batch asks for them."""

        def generate(self, inputs: Sequence[Encoded]) -> Any:
            def like_the_first(encoded: Encoded) -> Encoded:
                first = inputs[0].options
                return with_options(
                    encoded, logprobs=first.logprobs, top_logprobs=first.top_logprobs
                )

            made = super().generate([like_the_first(encoded) for encoded in inputs])
            return [answered(encoded, slot) for encoded, slot in zip(inputs, made, strict=True)]

    return FirstRow()


def tokenises_again(model: Any) -> Any:
    class Again(model):  # type: ignore[misc]
        """Reads the text of the prompt instead of its ids."""

        def logits(self, encoded: Encoded, ids: Sequence[int]) -> Mapping[int, float]:
            tokenizer = self.tokenizer
            again = tokenizer.encode(tokenizer.decode(encoded.prompt.compact_token_ids))
            seen = dataclasses.replace(encoded.prompt, token_ids=again, compact_token_ids=again)
            found: Mapping[int, float] = super().logits(
                dataclasses.replace(encoded, prompt=seen), ids
            )
            return found

    return Again()


def forgets_images(model: Any) -> Any:
    class Forgets(model):  # type: ignore[misc]
        """Sees no images of a conversation that goes on."""

        def logits(self, encoded: Encoded, ids: Sequence[int]) -> Mapping[int, float]:
            if encoded.request.continues is not None:
                seen = dataclasses.replace(encoded.prompt, images=())
                encoded = dataclasses.replace(encoded, prompt=seen)
            found: Mapping[int, float] = super().logits(encoded, ids)
            return found

    return Forgets()


LIARS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "the first stop token": (first_stop_only, "stop_token_ids"),
    "one kind of stop": (one_kind_of_stop, "stop"),
    "logprobs of the likeliest token": (logprobs_of_the_likeliest, "logprobs"),
    "zero is no seed": (zero_is_no_seed, "seed"),
    "a short seed": (short_seed, "seed"),
    "one filter": (one_filter, "top_p"),
    "logprobs of the first row": (logprobs_of_the_first_row, "logprobs"),
    "tokenises again": (tokenises_again, "token_ids"),
    "forgets images": (forgets_images, "images"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LIARS)
def test_an_engine_that_lies_beside_the_plain_case_is_found_out(name: str, model: Any) -> None:
    make, option = LIARS[name]

    def complaint(check: conformance.Check) -> str:
        try:
            check(pg.route(make(model)))
        except (AssertionError, pg.ContractError) as words:
            return str(words)
        return ""

    assert any(complaint(check).startswith(f"{option}:") for check in conformance.CHECKS)


@pytest.mark.parametrize("check", conformance_sampling.CHECKS, ids=lambda check: check.__name__)
def test_an_honest_engine_passes(check: conformance.Check, model: Any) -> None:
    check(pg.route(model()))
