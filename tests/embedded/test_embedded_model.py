"""The shipped folder: what it holds, that it loads anywhere, and that training and inference see
the same inputs.
"""

from __future__ import annotations

import random
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pipegen import embedded

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from training import conversations, model as shape, tool_tasks  # noqa: E402
from training.conversations import Conversation, Turn  # noqa: E402
from training.inference import Case, Embedded  # noqa: E402
from training.language_stage import positions  # noqa: E402
from training.scenes import draw, sample_scene  # noqa: E402
from training.vision_stage import patches  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def loaded() -> Embedded:
    torch.set_num_threads(1)
    return Embedded(embedded.path())


def _chat(*content: dict[str, str]) -> list[dict[str, object]]:
    return [{"role": "user", "content": list(content)}]


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = (
        "import sys, pipegen.embedded as e; e.path(); print(sorted({'torch','transformers','PIL'} &"
        " set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


def test_the_weights_are_those_of_the_checksum() -> None:
    lines = (embedded.path() / shape.CHECKSUMS).read_text().splitlines()
    assert [line.split() for line in lines] == [
        [shape.digest(embedded.path() / "model.safetensors"), "model.safetensors"]
    ]


def test_the_folder_is_small_and_in_bf16(loaded: Embedded) -> None:
    assert sum(file.stat().st_size for file in embedded.path().iterdir()) < 5_000_000
    assert all(torch.equal(p, p.bfloat16().float()) for p in loaded.model.parameters())


def test_every_id_decodes_and_every_text_encodes(loaded: Embedded) -> None:
    tokenizer = loaded.tokenizer
    assert len(tokenizer) == loaded.model.config.text_config.vocab_size
    assert all(tokenizer.convert_ids_to_tokens(i) is not None for i in range(len(tokenizer)))
    for text in ("Grüße, 世界! 🙂", "a\n\nb\t c", "x" * 50):
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


def test_ends_and_padding(loaded: Embedded) -> None:
    ids = loaded.tokenizer.convert_tokens_to_ids
    settings = loaded.model.generation_config
    assert settings.eos_token_id == [ids("<|im_end|>"), ids("<|endoftext|>")]
    assert settings.pad_token_id == loaded.tokenizer.pad_token_id == ids("<|endoftext|>")
    assert loaded.tokenizer.padding_side == "left"


def test_the_template_has_a_thinking_switch(loaded: Embedded) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    render = loaded.tokenizer.apply_chat_template
    plain = render(chat, tokenize=False, add_generation_prompt=True)
    off = render(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    assert plain == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert off == plain + "<think>\n\n</think>\n\n"


@pytest.mark.parametrize("seed", range(20))
def test_training_text_is_what_the_template_writes(loaded: Embedded, seed: int) -> None:
    rng = random.Random(seed)
    scenes = (sample_scene(rng, 2), sample_scene(rng, 1))
    make = (conversations.text_conversation, lambda r: conversations.image_conversation(scenes, r))[
        seed % 2
    ]
    chat = make(rng)
    messages = [] if chat.system is None else [{"role": "system", "content": chat.system}]
    for number, turn in enumerate(chat.turns):
        content = [{"type": "image"} for _ in turn.images] + [
            {"type": "text", "text": turn.exchange.question}
        ]
        messages.append({"role": "user", "content": content})
        thought = chat.thinking and number == len(chat.turns) - 1
        messages.append(
            {"role": "assistant", "content": turn.exchange.answer}
            | ({"reasoning_content": turn.exchange.thought} if thought else {})
        )
    pieces = conversations.render(chat, (1, 1), every_turn_marked=False)
    text = "".join(piece for piece, _ in pieces)
    assert text == loaded.tokenizer.apply_chat_template(messages, tokenize=False)
    ids = [
        i for piece, _ in pieces for i in loaded.tokenizer.encode(piece, add_special_tokens=False)
    ]
    assert ids == loaded.tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("seed", range(20))
def test_training_text_with_tools_is_what_the_template_writes(loaded: Embedded, seed: int) -> None:
    rng = random.Random(seed)
    tools = tool_tasks.tools(rng)
    kinds = rng.choices(tool_tasks.KINDS, k=2)
    queries = [tool_tasks.query(rng, tools, kind) for kind in kinds]
    turns = tuple(Turn(one, (), n > 0) for query in queries for n, one in enumerate(query))
    system = (None, "You are a helpful assistant.")[seed % 2]
    messages = [] if system is None else [{"role": "system", "content": system}]
    thinking = seed % 4 > 1
    for number, turn in enumerate(turns):
        messages += tool_tasks.messages(turn.exchange.question)
        said = {"role": "assistant", "content": turn.exchange.answer}
        thought = {"reasoning_content": turn.exchange.thought}
        last = number >= len(turns) - len(queries[-1])
        messages.append(said | (thought if thinking and last else {}))
    chat = Conversation(tool_tasks.system_text(system, tools), turns, thinking)
    pieces = conversations.render(chat, (), every_turn_marked=False)
    text = "".join(piece for piece, _ in pieces)
    wanted = loaded.tokenizer.apply_chat_template(messages, tools=list(tools), tokenize=False)
    assert text == wanted
    ids = [
        i for piece, _ in pieces for i in loaded.tokenizer.encode(piece, add_special_tokens=False)
    ]
    assert ids == loaded.tokenizer.encode(text, add_special_tokens=False)


def test_training_calls_are_what_the_template_writes(loaded: Embedded) -> None:
    functions = [
        {"name": "price", "arguments": {"item": "lamp"}},
        {"name": "add", "arguments": {"a": 3, "b": 14}},
    ]
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": one} for one in functions],
    }
    text = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}, called, {"role": "user", "content": "Hi"}],
        tokenize=False,
    )
    calls = [tool_tasks.call(one["name"], **one["arguments"]) for one in functions]
    assert "<|im_start|>assistant\n" + "\n".join(calls) + "<|im_end|>" in text


def test_training_patches_are_the_image_processors(loaded: Embedded) -> None:
    rng = random.Random(0)
    image_file = draw(sample_scene(rng, 3), 96, 128, rng)
    out = loaded.image_processor(images=[image_file], return_tensors="pt")
    assert out["image_grid_thw"].tolist() == [[1, 6, 8]]
    assert torch.allclose(out["pixel_values"], torch.from_numpy(patches(image_file)), atol=1e-6)


def test_training_positions_are_the_models(loaded: Embedded) -> None:
    rng = random.Random(0)
    images = (draw(sample_scene(rng, 1), 96, 160, rng), draw(sample_scene(rng, 1), 128, 128, rng))
    image = {"type": "image"}
    chat = _chat(
        image, {"type": "text", "text": "Then"}, image, {"type": "text", "text": "What do you see?"}
    )
    inputs = loaded.inputs([Case("", chat, "", images)])
    wanted, _ = loaded.model.model.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], image_grid_thw=inputs["image_grid_thw"]
    )
    found = positions(
        inputs["input_ids"][0].tolist(), loaded.model.config.image_token_id, [(96, 160), (128, 128)]
    )
    assert torch.equal(found, wanted[:, 0])


def test_the_text_export_has_the_same_logits(loaded: Embedded, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = shape.export_text_only(embedded.path(), tmp_path / "text")
    half = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert type(half).__name__ == "Qwen3ForCausalLM"
    inputs = loaded.tokenizer("Hello! Who are you?", return_tensors="pt")
    with torch.no_grad():
        assert torch.allclose(half(**inputs).logits, loaded.model(**inputs).logits, atol=1e-5)


def test_greedy_answers_do_not_depend_on_the_batch(loaded: Embedded) -> None:
    questions = (
        "Hello!",
        "Reverse: apple river stone",
        "What is 3 + 4?",
        "List the months of the year.",
    )
    cases = [Case("", _chat({"type": "text", "text": question}), "") for question in questions]
    together = loaded.answer(cases, 40)
    assert [answer.text for answer in together] == [
        loaded.answer([case], 40)[0].text for case in cases
    ]
