"""What engines are asked for a continuation."""

from __future__ import annotations

from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import Encoded, Prompt
from pipegen.records.scores import ScoreInput


def test_a_context_and_its_continuation_are_asked_as_one_prompt() -> None:
    options = resolve(GenerationOptions(max_new_tokens=9, max_prompt_tokens=3))
    prompt = Prompt(token_ids=(1, 5, 5), compact_token_ids=(1, 5))
    request = TextGenerationRequest(prompt="a")
    encoded = Encoded(request=request, options=options, prompt=prompt)
    row = ScoreInput(encoded=encoded, continuation=(7, 8))
    assert row.token_ids == row.whole.prompt.token_ids == (1, 5, 5, 7, 8)
    assert row.whole.prompt.compact_token_ids == (1, 5, 7, 8)
    assert (row.whole.options.max_new_tokens, row.whole.options.max_prompt_tokens) == (1, None)
