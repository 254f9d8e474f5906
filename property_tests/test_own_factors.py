"""Rotary factors of a sequence do not depend on the others of its batch."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from pipegen.backends.hf.load import use_own_factors  # noqa: E402  - needs the packages


class LongestRotary(torch.nn.Module):  # type: ignore[misc, name-defined]  # torch need not be there
    """As transformers does it: the longest row of a pass chooses the factor of all."""

    def forward(self, x: object, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[name-defined]
        angles = position_ids * (3.0 if position_ids.max() >= 8 else 1.0)
        return angles.cos(), angles.sin()


@given(
    st.integers(1, 5).flatmap(
        lambda width: st.lists(
            st.lists(st.integers(0, 20), min_size=width, max_size=width), min_size=1, max_size=6
        )
    )
)
def test_a_row_has_the_factors_that_it_has_alone(rows: list[list[int]]) -> None:
    module = LongestRotary()
    use_own_factors(module, 8)
    together = module.forward(None, torch.tensor(rows))
    alone = [LongestRotary().forward(None, torch.tensor([row])) for row in rows]
    for of_all, of_each in zip(together, zip(*alone, strict=True), strict=True):
        assert torch.equal(of_all, torch.cat(of_each))
