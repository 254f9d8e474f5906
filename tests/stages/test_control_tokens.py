"""Look-alikes of control tokens, hidden behind marks."""

from __future__ import annotations

from pipegen.stages.control_tokens import ControlTokens, choose_marks


def test_a_look_alike_that_a_mark_reveals_is_hidden_too() -> None:  # T3
    control = ControlTokens(ids={"<a>": 1, "><b": 2})
    marks = choose_marks(control, avoid="")
    hidden = control.hide("<a><b>", marks)
    assert control.found_in(hidden) is None
    assert marks.put_back(hidden) == "<a><b>"
