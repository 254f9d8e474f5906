"""Scores on the Hugging Face engine: the numbers of one full pass over each row, however the rows
are read.
"""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.models import FAMILIES, HYBRIDS, VARIANTS, encoded, write_model

from pipegen.backends.hf import hf_scoring
from pipegen.backends.hf.hf_engine import HFEngine
from pipegen.backends.hf.scored_rows import Context, common_prefixes
from pipegen.core.errors import BackendFailed, CallFailed, InvalidRequest
from pipegen.core.slots import is_ok
from pipegen.engines.session import answers
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.messages import ImageSource
from pipegen.records.option_table import DEFAULTS
from pipegen.records.scores import ScoreInput, TokenScores
from pipegen.testing.image_files import image_file

Pair = tuple[tuple[int, ...], tuple[int, ...]]


def rows(seed: int = 0) -> list[Pair]:
    """Contexts of all kinds: few-shot prefixes, questions with several choices of one and of
    several tokens, one within another, long continuations.
    """
    draw = random.Random(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(10, 150) for _ in range(count))

    first, second = ids(40), ids(35)
    made: list[Pair] = []
    for _ in range(4):
        context = first + ids(draw.randrange(1, 20))
        made += [(context, ids(draw.randrange(1, 9))) for _ in range(3)]
    for _ in range(2):
        context = second + ids(draw.randrange(1, 20))
        made += [(context, ids(1)), (context, ids(1))]
    made += [(ids(1), ids(70)), (ids(3), ids(2)), (first, ids(4))]
    draw.shuffle(made)
    return made


def asked(pairs: Sequence[Pair]) -> list[ScoreInput]:
    return [ScoreInput(encoded=encoded(context), continuation=ids) for context, ids in pairs]


def scores(engine: Any, inputs: Sequence[ScoreInput]) -> list[TokenScores]:
    return [slot.unwrap() for slot in answers(engine, inputs)]


def full_pass(folder: Path, pairs: Sequence[Pair]) -> list[tuple[list[float], list[bool]]]:
    """Each row alone in one pass of plain transformers over all of it but its last token, all
    logits, in float32.
    """
    from transformers import AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    out = []
    for context, ids in pairs:
        with torch.no_grad():
            places = (
                model(torch.tensor([(context + ids)[:-1]]))
                .logits[0]
                .float()
                .log_softmax(-1)[len(context) - 1 :]
            )
        out.append(picked(places, ids))
    return out


def picked(places: torch.Tensor, ids: Sequence[int]) -> tuple[list[float], list[bool]]:
    """Of each place the log probability of its token, and whether it is the likeliest."""
    pairs = [*zip(places, ids, strict=True)]
    return [float(place[token]) for place, token in pairs], [
        int(place.argmax()) == token for place, token in pairs
    ]


def agree(
    made: Sequence[TokenScores],
    wanted: Sequence[tuple[list[float], list[bool]]],
    tolerance: float = 1e-5,
) -> None:
    assert len(made) == len(wanted)
    for one, (logprobs, greedy) in zip(made, wanted, strict=True):
        assert one.logprobs == pytest.approx(logprobs, abs=tolerance, rel=0)
        assert list(one.greedy) == greedy


@pytest.mark.parametrize(
    "family", [name for name in (*FAMILIES, *HYBRIDS, *VARIANTS) if name != "qwen3_vl"]
)
def test_each_token_has_the_log_probability_of_one_full_pass(
    family: str, engine_of: Callable[[str], Any], folder_of: Callable[[str], Path]
) -> None:
    pairs = rows()
    agree(scores(engine_of(family), asked(pairs)), full_pass(folder_of(family), pairs))


OLDER: dict[str, dict[str, Any]] = {
    "MptForCausalLM": {"d_model": 48, "n_heads": 4, "n_layers": 2, "max_seq_len": 256},
    "GPTNeoForCausalLM": {
        "hidden_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 8,
    },
    "OPTForCausalLM": {
        "hidden_size": 48,
        "ffn_dim": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 48,
        "init_std": 0.2,
    },
    "BloomForCausalLM": {"hidden_size": 48, "n_layer": 2, "n_head": 4},
    "GPT2LMHeadModel": {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "MambaForCausalLM": {"hidden_size": 48, "num_hidden_layers": 2, "state_size": 8},
}
"""Models whose attention is their own: positions by the columns' distance (MPT, Bloom), a local
window that no layer of the cache shows (GPT Neo), learned positions (OPT, GPT-2), and one without
attention."""


@pytest.mark.parametrize("kind", OLDER)
def test_models_with_attention_of_their_own_have_the_numbers_of_one_full_pass(kind: str) -> None:
    import transformers
    from support.small_tokenizers import chatml_tokenizer

    import pipegen as pg

    tokenizer, of = chatml_tokenizer(), getattr(transformers, kind)
    torch.manual_seed(0)
    ids = {
        "vocab_size": len(tokenizer),
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": 1 if "OPT" in kind else None,
    }
    model = of(of.config_class(**{"initializer_range": 0.2, **OLDER[kind]}, **ids)).float().eval()
    pairs = rows(4)
    with pg.backends.hf(model, tokenizer=tokenizer, batch_size=5) as route:
        made = scores(route.engine, asked(pairs))
    for one, (context, own) in zip(made, pairs, strict=True):
        with torch.no_grad():
            places = (
                model(torch.tensor([(context + own)[:-1]]))
                .logits[0]
                .float()
                .log_softmax(-1)[len(context) - 1 :]
            )
        agree([one], [picked(places, own)])


def test_greedy_continuations_are_told(engine: Any, folder_of: Callable[[str], Path]) -> None:
    """What the engine itself generates greedily is greedy, and no longer so with another token in
    it.
    """
    context = (70, 71, 72)
    made = (
        engine.generate([encoded(context, max_new_tokens=5, stop={"ignore_eos": True})])[0]
        .unwrap()
        .token_ids
    )
    other = (*made[:3], (made[3] + 1) % 150, *made[4:])
    own, changed = scores(engine, asked([(context, made), (context, other)]))
    assert all(own.greedy)
    assert changed.greedy[:4] == (True, True, True, False)
    assert (changed.likeliest[3][0], changed.likeliest[3][1] > changed.logprobs[3]) == (
        own.continued.continuation[3],
        True,
    )
    assert all(
        likeliest == (token, logprob)
        for likeliest, token, logprob in zip(
            own.likeliest, own.continued.continuation, own.logprobs, strict=True
        )
    )


@pytest.mark.parametrize("size", [1, 3, 32])
@pytest.mark.parametrize("family", ["qwen3", "mistral", "lfm2"])
def test_no_order_and_no_grouping_changes_a_number(
    family: str, size: int, folder_of: Callable[[str], Path]
) -> None:
    engine = HFEngine(
        ModelLoadConfig(model=str(folder_of(family)), dtype="float32", batch_size=size)
    )
    pairs = rows(1)
    alone = [scores(engine, asked([pair]))[0] for pair in pairs]
    order = random.Random(2).sample(range(len(pairs)), len(pairs))
    together = scores(engine, asked([pairs[index] for index in order]))
    for index, one in zip(order, together, strict=True):
        assert one.logprobs == pytest.approx(alone[index].logprobs, abs=1e-5, rel=0)
        assert one.greedy == alone[index].greedy


def test_long_rope_goes_by_the_length_of_each_row(
    engine_of: Callable[[str], Any], folder_of: Callable[[str], Path]
) -> None:
    """Rows of fewer and of more than 64 tokens, the continuation of some beginning before the
    factors change.
    """
    draw = random.Random(3)
    long = tuple(draw.randrange(10, 150) for _ in range(100))
    pairs: list[Pair] = [
        (long[:60], long[60:64]),
        (long[:60], long[60:65]),
        (long[:60], long[60:66]),
        (long[:60], long[60:]),
        (long[:80], long[80:90]),
    ]
    agree(
        scores(engine_of("phi3_longrope"), asked(pairs)),
        full_pass(folder_of("phi3_longrope"), pairs),
    )


def test_images_in_the_context_are_seen(
    engine_of: Callable[[str], Any], folder_of: Callable[[str], Path]
) -> None:
    """Several images of several sizes, shared by choices: the numbers of a pass with the
    checkpoint's own inputs.
    """
    from transformers import AutoModelForImageTextToText

    engine = engine_of("qwen3_vl")
    mark = engine._checkpoint.image_token_id
    inputs, wanted = [], []
    auto: Any = AutoModelForImageTextToText
    model = auto.from_pretrained(folder_of("qwen3_vl"), dtype=torch.float32).eval()
    for sizes in ([(40, 70)], [(96, 64), (33, 120)], []):
        images = [
            engine.prepare_image(
                ImageSource(data=image_file(width=w, height=h)), DEFAULTS.preprocess, 0
            ).unwrap()
            for w, h in sizes
        ]
        prompt = (
            *[token for image in images for token in (90, *[mark] * image.tokens, 91)],
            70,
            71,
        )
        for ids in ((80, 81, 82), (85,), (86, 87)):
            inputs.append(ScoreInput(encoded=encoded(prompt, images=images), continuation=ids))
            whole = torch.tensor([prompt + ids])
            more: dict[str, Any] = {}
            if images:
                more = {
                    name: torch.as_tensor(value)
                    for name, value in engine._checkpoint.image_inputs(images).tensors.items()
                }
                more["mm_token_type_ids"] = (whole == mark).long()
            with torch.no_grad():
                places = (
                    model(whole, **more).logits[0].float().log_softmax(-1)[len(prompt) - 1 : -1]
                )
            wanted.append(picked(places, ids))
    agree(scores(engine, inputs), wanted)


def test_a_bad_row_costs_no_other(engine: Any, folder_of: Callable[[str], Path]) -> None:
    pairs: list[Pair] = [((70, 71), (72,)), ((70, 10**6), (72,)), ((73,), (74, 75))]
    slots = answers(engine, asked(pairs))
    assert [is_ok(slot) for slot in slots] == [True, False, True]
    assert isinstance(slots[1].failure(), InvalidRequest)
    agree(
        [slots[0].unwrap(), slots[2].unwrap()], full_pass(folder_of("qwen3"), [pairs[0], pairs[2]])
    )


def watch(
    engine: Any,
    monkeypatch: pytest.MonkeyPatch,
    before: Callable[[torch.Tensor], None] = lambda ids: None,
) -> list[tuple[tuple[int, ...], int]]:
    """Of each pass of the model the shape of its ids, and how many logits it made."""
    model = engine.computing.loaded()
    plain, seen = model.forward, []

    def forward(*args: Any, **kwargs: Any) -> Any:
        before(kwargs["input_ids"])
        out = plain(*args, **kwargs)
        seen.append((tuple(kwargs["input_ids"].shape), out.logits.numel()))
        return out

    # where the engine looks for logits_to_keep
    forward.__signature__ = inspect.signature(plain)  # type: ignore[attr-defined]
    monkeypatch.setattr(model, "forward", forward)
    return seen


def test_what_contexts_share_is_read_once(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 questions of 20 tokens behind 100 that all have, with 4 choices of 5: 100 + 200 + 160
    tokens, where each row alone would read 4,960.
    """
    draw = random.Random(5)
    ids = lambda count: tuple(draw.randrange(10, 150) for _ in range(count))  # noqa: E731 - short
    shots = ids(100)
    pairs = [
        (context, ids(5)) for context in [shots + ids(20) for _ in range(10)] for _ in range(4)
    ]
    seen = watch(engine, monkeypatch)
    scores(engine, asked(pairs))
    assert sum(shape[0] * shape[1] for shape, _ in seen) == 100 + 10 * 20 + 40 * 4


@pytest.mark.parametrize("family", ["mistral", "gemma2"])
def test_what_contexts_share_within_a_sliding_window_is_read_once(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 questions of 1 to 8 tokens behind 60 that all have; of contexts that are longer than the
    window, nothing is shared.
    """
    config = write_model(tmp_path, family) / "config.json"
    config.write_text(
        json.dumps({**json.loads(config.read_text()), "sliding_window": 80}), encoding="utf-8"
    )
    draw = random.Random(8)
    ids = lambda count: tuple(draw.randrange(10, 150) for _ in range(count))  # noqa: E731 - short
    shots, longer = ids(60), ids(90)
    short = [
        (context, ids(2))
        for context in [shots + ids(number) for number in range(1, 9)]
        for _ in range(2)
    ]
    engine = HFEngine(ModelLoadConfig(model=str(tmp_path), dtype="float32"))
    seen = watch(engine, monkeypatch)
    agree(scores(engine, asked(short)), full_pass(tmp_path, short))
    assert sum(shape[0] * shape[1] for shape, _ in seen) == 60 + 8 * 8 + 16
    long = [*short, *((longer + ids(number), ids(2)) for number in range(1, 4))]
    agree(scores(engine, asked(long)), full_pass(tmp_path, long))


def test_a_pass_over_continuations_has_little_padding(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most as many columns as another pass would cost, whatever the lengths of the choices."""
    draw = random.Random(7)
    context = tuple(draw.randrange(10, 150) for _ in range(40))
    lengths = [2 + draw.randrange(40) for _ in range(30)]
    seen = watch(engine, monkeypatch)
    scores(
        engine,
        asked(
            [(context, tuple(draw.randrange(10, 150) for _ in range(length))) for length in lengths]
        ),
    )
    read, passes = sum(shape[0] * shape[1] for shape, _ in seen[1:]), len(seen) - 1
    assert read <= sum(length - 1 for length in lengths) + hf_scoring.PADDED[0] * passes
    assert read < 30 * max(lengths) * 0.8
    assert passes < 15


def test_contexts_of_one_token_are_not_read_by_themselves(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole texts after one BOS: each is read with it, in one pass without a cache."""
    seen = watch(engine, monkeypatch)
    scores(engine, asked([((70,), tuple(range(20, 60))), ((70,), tuple(range(30, 70)))]))
    assert [shape for shape, _ in seen] == [(2, 40)]


def test_no_pass_makes_more_logits_than_the_bound(
    engine: Any, monkeypatch: pytest.MonkeyPatch, folder_of: Callable[[str], Path]
) -> None:
    vocabulary = engine.computing.loaded().get_output_embeddings().weight.shape[0]
    monkeypatch.setattr(hf_scoring, "LOGITS", 12 * 4 * vocabulary)
    draw = random.Random(6)
    pairs: list[Pair] = [
        ((70,), tuple(draw.randrange(10, 150) for _ in range(count)))
        for count in (100, 41, 40, 2, 1)
    ]
    seen = watch(engine, monkeypatch)
    agree(scores(engine, asked(pairs)), full_pass(folder_of("qwen3"), pairs))
    assert max(logits for _, logits in seen) <= 12 * vocabulary
    assert sum(shape[0] * shape[1] for shape, _ in seen) < 250


def test_without_memory_for_all_rows_half_of_them_are_read(
    engine: Any, monkeypatch: pytest.MonkeyPatch, folder_of: Callable[[str], Path]
) -> None:
    def full(ids: torch.Tensor) -> None:
        if ids.shape[0] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    pairs = rows(7)
    watch(engine, monkeypatch, full)
    agree(scores(engine, asked(pairs)), full_pass(folder_of("qwen3"), pairs))


def test_a_row_that_does_not_fit_alone_fails_alone(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(ids: torch.Tensor) -> None:
        if ids.shape[1] > 50:
            raise torch.OutOfMemoryError("CUDA out of memory")

    watch(engine, monkeypatch, full)
    slots = answers(engine, asked([((70,), (71,)), (tuple(range(10, 90)), (5, 6)), ((72,), (73,))]))
    assert [is_ok(slot) for slot in slots] == [True, False, True]
    assert isinstance(slots[1].failure(), BackendFailed)
    assert slots[1].failure().scope == "row"


def test_a_device_that_fails_fails_the_call_and_a_bug_raises(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(ids: torch.Tensor) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    def bug(*_: Any) -> None:
        raise RuntimeError("of pipegen's own code")

    with monkeypatch.context() as patched:
        watch(engine, patched, broken)
        with pytest.raises(CallFailed):
            answers(engine, asked([((70,), (71,))]))
    monkeypatch.setattr(hf_scoring, "note", bug)
    with pytest.raises(RuntimeError, match="of pipegen's own code"):
        answers(engine, asked([((70,), (71,))]))


def test_few_cached_tokens_are_kept_within_their_limit(
    engine: Any, monkeypatch: pytest.MonkeyPatch, folder_of: Callable[[str], Path]
) -> None:
    """Where the device has room for 100 tokens, later passes have few rows."""
    monkeypatch.setattr(hf_scoring.caches, "max_cached_tokens", lambda cache, tokens, device: 100)
    pairs = [*rows(8), *rows(9)]
    agree(scores(engine, asked(pairs)), full_pass(folder_of("qwen3"), pairs))


def test_nothing_is_loaded_for_no_rows(folder_of: Callable[[str], Path]) -> None:
    engine = HFEngine(ModelLoadConfig(model=str(folder_of("qwen3"))))
    assert answers(engine, []) == []
    assert not engine.loaded


def contexts(*sequences: Sequence[int]) -> list[Context]:
    return [Context(encoded(sequence)) for sequence in sequences]


def test_prefixes_are_shared_where_that_saves_tokens() -> None:
    shots, other = tuple(range(10, 50)), tuple(range(60, 100))
    made = common_prefixes(
        contexts((*shots, 1), (*other, 1, 2), (*shots, 2, 3), (7,), (*other, 3), (8, 9))
    )
    assert [
        (prefix, sorted(context.sequence[prefix:] for context in group)) for prefix, group in made
    ] == [
        (40, [(1,), (2, 3)]),
        (40, [(1, 2), (3,)]),
        (0, [(7,), (8, 9)]),
    ]


def test_no_context_is_all_prefix() -> None:
    """Its last token has to be read after the prefix: its logits are needed."""
    shots = tuple(range(10, 50))
    assert [prefix for prefix, _ in common_prefixes(contexts(shots, (*shots, 1)))] == [39]
