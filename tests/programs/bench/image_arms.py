"""Ways of generating from images, as `arms.py` does from text: `python image_arms.py NAME
WORK.json`. The embedded model, from files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from arms import Counts, Run, Work, forced, in_batches, serve
from forced import up_to
from PIL import Image

QUESTION = "Describe the image."


def messages(path: str | None, closing: str = "") -> list[dict[str, Any]]:
    """One question about an image; `closing` begins the answer, and its last token sets the
    output's length.
    """
    image: dict[str, Any] = {"type": "image"} if path is None else {"type": "image", "path": path}
    asked = {"role": "user", "content": [image, {"type": "text", "text": QUESTION}]}
    return [asked, {"role": "assistant", "content": closing}] if closing else [asked]


def inputs_of(
    embedded: Any, image_files: list[Image.Image], closings: list[str]
) -> dict[str, torch.Tensor]:
    """The batch as tensors: templates rendered, images processed, placeholders expanded,
    left-padded.
    """
    pixels = dict(embedded.image_processor(images=image_files, return_tensors="pt"))
    tokens = (pixels["image_grid_thw"].prod(-1) // embedded.image_processor.merge_size**2).tolist()
    texts = []
    for closing, count in zip(closings, tokens, strict=True):
        ends = {"continue_final_message": True} if closing else {"add_generation_prompt": True}
        text = embedded.tokenizer.apply_chat_template(
            messages(None, closing), tokenize=False, enable_thinking=False, **ends
        )
        texts.append(text.replace("<|image_pad|>", "<|image_pad|>" * count))
    batch = dict(
        embedded.tokenizer(texts, padding=True, add_special_tokens=False, return_tensors="pt")
    )
    batch["mm_token_type_ids"] = (batch["input_ids"] == embedded.model.config.image_token_id).long()
    return {**batch, **pixels}


def opened(path: str) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


def static(work: Work) -> tuple[Run, Counts]:
    """Each batch's images are opened and processed, then it is generated: fixed batches in arrival
    order.
    """
    from training.inference import Embedded

    embedded = Embedded(Path(work["model"]))
    counts, eos = forced(embedded.model, work), set(work["eos"])

    def generate(rows: list[int]) -> list[Any]:
        inputs = inputs_of(
            embedded,
            [opened(work["images"][row]) for row in rows],
            [work["closings"][row] for row in rows],
        )
        settings = {
            "max_new_tokens": work["max_new_tokens"],
            "do_sample": False,
            "eos_token_id": work["eos"],
            "pad_token_id": work["eos"][0],
        }
        with torch.no_grad():
            out = embedded.model.generate(**inputs, **settings)
        answers = [up_to(ids, eos) for ids in out[:, inputs["input_ids"].shape[1] :].tolist()]
        embedded.tokenizer.batch_decode(answers)
        return answers

    return lambda: in_batches(work, list(range(len(work["images"]))), generate), counts


def processor_of(embedded: Any) -> Any:
    """transformers' own processor of the model's family, without its half for videos, which would
    need torchvision.
    """
    from transformers import Qwen3VLProcessor

    class Stills(Qwen3VLProcessor):
        def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
            return (
                None
                if argument is None
                else super().check_argument_for_proper_class(argument_name, argument)
            )

    return Stills(
        embedded.image_processor, embedded.tokenizer, chat_template=embedded.tokenizer.chat_template
    )


def transformers_pipeline(work: Work) -> tuple[Run, Counts]:
    from training.inference import Embedded
    from transformers import pipeline

    embedded = Embedded(Path(work["model"]))
    untyped: Any = pipeline
    generator = untyped(
        "image-text-to-text", model=embedded.model, processor=processor_of(embedded), device="cpu"
    )
    counts, eos = forced(generator.model, work), set(work["eos"])
    made: list[list[int]] = []
    plain = generator.model.generate

    def generate(**inputs: Any) -> Any:
        out = plain(**inputs)
        made.extend(up_to(ids, eos) for ids in out[:, inputs["input_ids"].shape[1] :].tolist())
        return out

    generator.model.generate = generate  # the pipeline gives texts alone; its ids are read off here

    def run() -> list[Any]:
        made.clear()
        # the pipeline writes into what it is given
        given = {
            "max_new_tokens": work["max_new_tokens"],
            "do_sample": False,
            "eos_token_id": work["eos"],
        }
        asked = {
            "batch_size": work["batch"],
            "return_full_text": False,
            "enable_thinking": False,
            "generate_kwargs": given,
        }
        generator(text=[messages(path) for path in work["images"]], **asked)
        return list(made)

    return run, counts


def pipegen(work: Work) -> tuple[Run, Counts]:
    import pipegen as pg

    route = pg.backends.hf(work["model"], batch_size=work["batch"], dtype="fp32")
    engine: Any = route.engine
    counts, eos = forced(engine.computing.loaded(), work), set(work["eos"])
    chat = pg.ChatTemplateOptions(continue_final_message=any(work["closings"]))
    options = pg.GenerationOptions(max_new_tokens=work["max_new_tokens"], chat=chat)

    def run() -> list[Any]:
        engine.computing.pixels.close()  # what the last run has kept would spare this one its images
        engine.computing.prepared.clear()
        engine.computing.prefixes.clear()
        asked = (
            {"messages": messages(path, closing)}
            for path, closing in zip(work["images"], work["closings"], strict=True)
        )
        slots = pg.imap(route, asked, options, in_flight=max(64, work["window"]))
        return [up_to(list(slot.unwrap().token_ids), eos) for slot in slots]

    return run, counts


ARMS = {
    "pipegen": pipegen,
    "static, arrival order": static,
    "transformers image-text-to-text pipeline": transformers_pipeline,
}

if __name__ == "__main__":
    serve(ARMS)
