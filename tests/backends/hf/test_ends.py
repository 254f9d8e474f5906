"""The Hugging Face engine: where each row of a call ends, and what is told of its tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.models import encoded
from support.rows import FAMILY, PROMPTS, ids, raws

from pipegen.engines.plugin import Plugin
from pipegen.records.option_groups import StopOptions
from pipegen.records.results import Raw
from pipegen.stages.ending import decode_row, end_row


def ended(engine: Any, raw: Raw) -> tuple[str, Any]:
    decoded = end_row(raw, engine.tokenizer, engine.eos_token_ids).unwrap()
    return decoded.finish.value, decoded.stop


def forcing(at: int, token_id: int) -> Plugin:
    """Makes `token_id` the row's token number `at` (counted from 0)."""

    def processor(context: Any) -> Any:
        def process(sequence: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if sequence.shape[1] - context.prompt_length == at:
                scores = torch.full_like(scores, -torch.inf).index_fill(
                    1, torch.tensor([token_id]), 0.0
                )
            return scores

        return process

    return Plugin(name="forcing", logits_processor=processor)


def test_a_row_that_ends_early_has_its_own_count_and_no_padding(engine: Any) -> None:  # B2, A17
    plain = ids(
        engine,
        [
            encoded(prompt, max_new_tokens=30, stop=StopOptions(ignore_eos=True))
            for prompt in PROMPTS
        ],
    )
    ends = [row[3] for row in plain]
    inputs = [
        encoded(prompt, max_new_tokens=30, stop=StopOptions(ignore_eos=True, stop_token_ids=(end,)))
        for prompt, end in zip(PROMPTS, ends, strict=True)
    ]
    inputs[1] = encoded(PROMPTS[1], max_new_tokens=30, stop=StopOptions(ignore_eos=True))
    for at, raw in enumerate(raws(engine, inputs)):
        expected = plain[at] if at == 1 else plain[at][: plain[at].index(ends[at]) + 1]
        assert raw.token_ids == expected
        assert ended(engine, raw) == (("length", None) if at == 1 else ("stop_token", ends[at]))


@FAMILY
# A5, A13
def test_a_stop_string_over_several_tokens_halts_the_row_at_the_token_that_completes_it(
    family: str, engine_of: Callable[[str], Any]
) -> None:
    engine = engine_of(family)
    whole = raws(
        engine, [encoded(PROMPTS[0], max_new_tokens=24, stop=StopOptions(ignore_eos=True))]
    )[0]
    read = decode_row(whole, engine.tokenizer).unwrap()
    wanted = read.text[read.text_ends[4] - 1 : read.text_ends[6]]
    made = next(
        count
        for count, end in enumerate(read.text_ends, 1)
        if end >= read.text.index(wanted) + len(wanted)
    )
    halted = encoded(
        PROMPTS[0], max_new_tokens=24, stop=StopOptions(stop=(wanted,), ignore_eos=True)
    )
    exact = encoded(
        PROMPTS[0], max_new_tokens=made, stop=StopOptions(stop=(wanted,), ignore_eos=True)
    )
    for raw in raws(engine, [halted, encoded(PROMPTS[3], max_new_tokens=24), exact])[::2]:
        assert raw.token_ids == whole.token_ids[:made]
        assert ended(engine, raw) == ("stop_string", wanted)


def test_min_new_tokens_keeps_a_row_going(engine: Any) -> None:  # A19
    first = ids(
        engine, [encoded(PROMPTS[0], max_new_tokens=12, stop=StopOptions(ignore_eos=True))]
    )[0]
    blocked = StopOptions(stop_token_ids=tuple(set(first[:3])), ignore_eos=True)
    early, late = raws(
        engine,
        [
            encoded(PROMPTS[0], max_new_tokens=12, stop=blocked),
            encoded(PROMPTS[0], max_new_tokens=12, min_new_tokens=6, stop=blocked),
        ],
    )
    assert len(early.token_ids) == 1
    assert len(late.token_ids) > 6
    assert not set(late.token_ids[:6]) & set(first[:3])


def test_a_stop_string_within_min_new_tokens_does_not_count(engine: Any) -> None:  # A19
    read = decode_row(
        raws(engine, [encoded(PROMPTS[0], max_new_tokens=12, stop=StopOptions(ignore_eos=True))])[
            0
        ],
        engine.tokenizer,
    ).unwrap()
    stops = StopOptions(stop=(read.text[: read.text_ends[2]],), ignore_eos=True)
    assert (
        len(ids(engine, [encoded(PROMPTS[0], max_new_tokens=12, min_new_tokens=5, stop=stops)])[0])
        > 5
    )


def test_every_end_token_of_the_checkpoint_ends_a_row_and_0_is_one(tmp_path: Any) -> None:  # A8
    from support.models import write_model

    from pipegen.backends.hf.hf_engine import HFEngine
    from pipegen.engines.settings import ModelLoadConfig

    engine = HFEngine(ModelLoadConfig(model=str(write_model(tmp_path, eos_token_id=[0, 300]))))
    assert engine.eos_token_ids == (0, 300)
    for end in (0, 300):
        raw = raws(
            engine.with_plugin(forcing(3, end)),
            [encoded(PROMPTS[0], max_new_tokens=9), encoded(PROMPTS[1], max_new_tokens=2)],
        )[0]
        assert len(raw.token_ids) == 4
        assert ended(engine, raw) == ("eos", None)


# A18, B5
def test_an_end_token_that_is_also_the_pad_token_is_counted_once_and_kept(
    engine_of: Callable[[str], Any],
) -> None:
    engine = engine_of("llama")
    (end,) = engine.eos_token_ids
    assert engine._checkpoint.pad_token_id == end
    forced = engine.with_plugin(forcing(2, end))
    inputs = [
        encoded(PROMPTS[2], max_new_tokens=9),
        encoded(PROMPTS[3], max_new_tokens=9, stop=StopOptions(ignore_eos=True)),
    ]
    stopped, kept = ids(forced, inputs)
    assert stopped[-1] == end
    assert len(stopped) == 3
    assert kept[2] == end
    assert len(kept) == 9


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.7},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 3, "repetition_penalty": 1.4},
    ],
)
# A20
def test_logprobs_are_the_models_own_whatever_the_options(
    options: dict[str, Any], engine: Any
) -> None:
    end = engine.eos_token_ids[0]
    forced = engine.with_plugin(forcing(5, end))
    raw = raws(
        forced,
        [
            encoded(PROMPTS[0], max_new_tokens=9, logprobs=True, top_logprobs=3, seed=1, **options),
            encoded(PROMPTS[3], max_new_tokens=2),
        ],
    )[0]
    with torch.no_grad():
        logits = (
            engine.computing.loaded()(torch.tensor([[*PROMPTS[0], *raw.token_ids]]))
            .logits[0]
            .float()
            .log_softmax(-1)
        )
    assert raw.logprobs is not None
    assert [entry.token_id for entry in raw.logprobs] == list(raw.token_ids)
    assert raw.token_ids[-1] == end
    for place, entry in enumerate(raw.logprobs, len(PROMPTS[0]) - 1):
        best = logits[place].topk(3)
        assert entry.logprob == pytest.approx(logits[place, entry.token_id].item(), abs=1e-4)
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [logprob for _, logprob in entry.top] == pytest.approx(
            best.values.tolist(), abs=1e-4
        )
