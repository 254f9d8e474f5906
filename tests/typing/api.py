"""Code as users write it. It is not run: mypy (strict) and pyright check it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import pipegen as pg
from pipegen.config import read_chat
from pipegen.contrib.renderers import RendererBackend, SGLangBackend, generate, render_with
from pipegen.testing.fake import FakeEngine

# Every setting of a model is a keyword of its record.
loads = pg.ModelLoadConfig(
    model=Path("m"),
    compile=True,
    adapter=Path("a"),
    image_memory_bytes=0,
    engine_kwargs={"max_memory": {"cpu": "1GiB"}},
)

fast_route = pg.backends.hf(Path("m"), batch_size=8, dtype="float32")
assert_type(fast_route, pg.Route)
assert_type(pg.backends.hf(model=object(), tokenizer=object(), batch_size=2), pg.Route)
assert_type(
    pg.backends.vllm_server("m", base_url="http://h", api_key="k", headers={"X": "y"}), pg.Route
)
pg.backends.hf("m", batchsize=8)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
# pyright: ignore[reportArgumentType]
pg.backends.openai_server("m", dialect="french")  # type: ignore[arg-type]

# Requests, options and routes.
requests: list[pg.GenerationRequest] = [
    pg.TextGenerationRequest(messages=[{"role": "user", "content": "Hi"}]),
    pg.TextGenerationRequest(prompt="Once upon a time", id="a"),
    pg.TextGenerationRequest(prompt_token_ids=[1, 2, 3]),
    pg.VlmGenerationRequest(prompt="What is it?", images=["a.png", Path("b.png"), b"..."]),
]
options = pg.GenerationOptions(temperature=0.2, max_new_tokens=64, stop=("\n\n",))
more_options = pg.GenerationOptions(
    stop=pg.StopOptions(stop=("END",), stop_token_ids=(7,)),
    chat=pg.ChatTemplateOptions(enable_thinking=True),
)

with pg.backends.hf("embedded") as fast, pg.backends.hf("embedded", dtype="float32") as safe:
    assert_type(fast, pg.Route)
    route = pg.fallback(fast, safe, when=pg.UnsupportedMultimodal)
    assert_type(route, pg.Pipe[pg.GenerationRequest, pg.GenerationResult])
    for slot in pg.run(route, requests, options):
        if pg.is_ok(slot):
            assert_type(slot.unwrap(), pg.GenerationResult)
            print(slot.unwrap().text)
        else:
            print(slot.failure().hint)


# A stage of one's own, and a pipeline of it.
def as_number(result: pg.GenerationResult) -> pg.Slot[int]:
    return (
        pg.Success(int(result.text))
        if result.text.isdecimal()
        else pg.Failure(pg.StageFailed(f"{result.text!r} is no number", stage="as_number"))
    )


def half(number: int) -> float:
    return number / 2


numbers = route >> pg.each("as_number", as_number)
assert_type(numbers, pg.Pipe[pg.GenerationRequest, int])
halves = numbers >> pg.pure("half", half)
assert_type(halves, pg.Pipe[pg.GenerationRequest, float])
assert_type(pg.run(halves, requests), pg.Batch[float])

lengths = route >> pg.pure("length", lambda result: len(result.text))
assert_type(lengths, pg.Pipe[pg.GenerationRequest, int])
trusted = route >> pg.each("trust", lambda result: pg.Success(len(result.text)))
assert_type(trusted, pg.Pipe[pg.GenerationRequest, int])

# The stages of a route, one by one.
scripted = FakeEngine("a")
encoded = (
    pg.stages.resolve(scripted)
    >> pg.stages.render(scripted)
    >> pg.stages.tokenize(scripted)
    >> pg.stages.fit(scripted)
)
assert_type(encoded, pg.Pipe[pg.GenerationRequest, pg.stages.Encoded])
called = encoded >> pg.call(scripted)
assert_type(called, pg.Pipe[pg.GenerationRequest, pg.stages.Raw])
whole = called >> pg.stages.decode(scripted) >> pg.stages.stop(scripted) >> pg.stages.trim(scripted)
assert_type(whole, pg.Pipe[pg.GenerationRequest, pg.GenerationResult])
assert_type(
    fast.insert(pg.pure("look", lambda decoded: decoded), after="decode")
    .remove("fit")
    .replace("stop", pg.stages.stop(scripted)),
    pg.Route,
)
assert_type(
    pg.attach(whole, pg.plugins.balanced_json()), pg.Pipe[pg.GenerationRequest, pg.GenerationResult]
)

# Plain data is taken too; errors are told apart.
batch = pg.run(numbers, [{"prompt": "1 + 1 ="}])
first = batch[0]
if pg.is_ok(first):
    assert_type(first.unwrap(), int)
else:
    error = first.failure()
    print(error.message, error.retryable)
    if isinstance(error, pg.PromptTooLong):
        assert_type(error.limit, int | None)
texts = [slot.map(lambda number: f"{number:03}").value_or("") for slot in batch]
assert_type(texts, list[str])


# Any number of requests, and streams.
def endless() -> Iterator[pg.GenerationRequest]:
    while True:
        yield pg.TextGenerationRequest(prompt="Hi")


for number in pg.imap(numbers, endless(), in_flight=8):
    assert_type(number, pg.Slot[int])
    break

tickets: list[tuple[str, pg.GenerationRequest]] = [("T-1", requests[0]), ("T-2", requests[1])]
for ticket, verdict in pg.imap_keyed(numbers, tickets):
    assert_type(ticket, str)
    assert_type(verdict, pg.Slot[int])
settings = pg.grid(requests[0], {("hot", 1): pg.GenerationOptions(temperature=1.0, seed=1)})
assert_type(settings, dict[tuple[str, int], pg.GenerationRequest])
assert_type(pg.grid(requests[0], [options, {"temperature": 1.0}]), tuple[pg.GenerationRequest, ...])
drawn = pg.run(route, requests, pg.GenerationOptions(samples=4))[0].map(
    lambda result: result.completions
)
assert_type(drawn, pg.Slot[pg.Batch[pg.GenerationResult]])

for event in pg.stream(route, requests):
    if isinstance(event, pg.Delta):
        print(event.index, event.text)
    else:
        assert_type(event, pg.Done)
        assert_type(event.slot, pg.Slot[pg.GenerationResult])


async def all_at_once() -> list[str]:
    texts = [
        slot.unwrap().text for slot in await pg.arun(route, requests, options) if pg.is_ok(slot)
    ]
    async for slot in pg.aimap(route, endless()):
        texts.append(slot.map(lambda result: result.text).value_or(""))
    async for event in pg.astream(route, requests):
        if isinstance(event, pg.Delta):
            texts.append(event.text)
    return texts


# Plugins are values; attaching one gives a slot.
with_json = pg.attach(fast, pg.plugins.balanced_json())
assert_type(with_json, pg.Route)
shout = pg.Plugin(name="shout", trim=str.upper)
loud = pg.attach(fast, shout, pg.plugins.strip_prefix(["Answer:"]))
assert_type(loud, pg.Route)

# The object for code that wants one.
engine = pg.GenerationEngine(pg.ModelLoadConfig(model="embedded"))
assert_type(engine.generate_text_batch(requests, options), pg.Batch[pg.GenerationResult])

# A chat file, and its backends as routes.
chat = read_chat("chat.yaml")
assert_type(chat.agents[0].backend.first(), pg.Route)
assert_type(chat.agents[0].backend.open(), pg.Pipe[pg.GenerationRequest, pg.GenerationResult])
assert_type(
    pg.run(chat.agents[0].backend.open(), requests, chat.agents[0].backend.options),
    pg.Batch[pg.GenerationResult],
)

# In the place of renderers.client; a renderer also serves as stages of a pipe.
engine_of: RendererBackend = SGLangBackend(vocab_size=1000)


async def one_completion(client: Any, renderer: Any) -> dict[str, Any]:
    return await generate(
        client=client, renderer=renderer, messages=[], model="m", backend=engine_of
    )


def with_renderer(renderer: Any) -> pg.Pipe[pg.GenerationRequest, pg.GenerationResult]:
    return pg.each("render", render_with(renderer)) >> route
