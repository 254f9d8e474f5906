"""What the turns of conversations cost on the Hugging Face engine: prompt tokens read against the
least possible, passes against one call that knew all turns beforehand, and the memory of what
stays. `loops` counts the passes of `pg.imap(pg.turns(...))`, `vllm` does so on vLLM, with the python
of its environment.

    python tests/programs/bench/turns.py [tokens] [passes] [loops] [memory] [vllm]

It prints its figures. They are counts, the same on every machine, but for the memory of the
process.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from measure import peak_memory

import pipegen as pg

Ids = tuple[int, ...]


def opened(**more: Any) -> Any:
    return pg.backends.hf("embedded", variant="text", dtype="float32", **more)


class Conversation:
    """Words of a user, turn by turn, and what was answered. Each prompt is the one before it with
    its answer, and new words.
    """

    def __init__(self, number: int, turns: int, head: Ids) -> None:
        self.chance = random.Random(number)
        self.turns, self.ids = turns, head
        self.prompts: list[Ids] = []
        self.answers: list[Ids] = []
        self.lengths: list[int] = []

    def request(self) -> dict[str, Any]:
        chance = self.chance
        words = tuple(chance.randrange(200, 1000) for _ in range(chance.randint(8, 30)))
        self.prompts.append((*self.ids, *words))
        self.lengths.append(chance.randint(8, 40))
        return request(self.prompts[-1], self.lengths[-1])

    def answered(self, result: Any) -> None:
        self.answers.append(tuple(result.token_ids))
        self.ids = (*self.prompts[-1], *self.answers[-1])

    @property
    def ended(self) -> bool:
        return len(self.answers) == self.turns


def request(ids: Ids, length: int) -> dict[str, Any]:
    options = {"max_new_tokens": length, "stop": {"ignore_eos": True}}
    return {"prompt_token_ids": ids, "options": options}


def conversations(count: int, turns: int) -> list[Conversation]:
    chance = random.Random(0)
    head = tuple(chance.randrange(200, 1000) for _ in range(60))
    return [Conversation(number, turns, head) for number in range(count)]


def least(talks: Sequence[Conversation]) -> int:
    """The tokens of all prompts, each beginning once, but for those that were read while they were
    generated: all tokens of an answer but its last.
    """
    needed, generated = set[Ids](), set[Ids]()
    for talk in talks:
        for prompt, answer in zip(talk.prompts, talk.answers, strict=True):
            needed.update(prompt[:end] for end in range(1, len(prompt) + 1))
            whole = (*prompt, *answer)
            generated.update(whole[:end] for end in range(len(prompt) + 1, len(whole)))
    return len(needed - generated)


def in_rounds(route: Any, talks: Sequence[Conversation], call: Callable[..., Any]) -> None:
    """One call for each turn of all conversations."""
    while not talks[0].ended:
        slots = list(call(route, [talk.request() for talk in talks]))
        for talk, slot in zip(talks, slots, strict=True):
            talk.answered(slot.unwrap())


def in_loops(route: Any, talks: Sequence[Conversation]) -> None:
    """Each conversation in a loop of its own, all of them at one time."""

    async def loop(talk: Conversation) -> None:
        while not talk.ended:
            batch = await pg.arun(route, [talk.request()])
            talk.answered(batch[0].unwrap())

    async def together() -> None:
        await asyncio.gather(*map(loop, talks))

    asyncio.run(together())


def tokens() -> None:
    """6 turns of 8 conversations."""
    for name, call in (("run", pg.run), ("imap", pg.imap)):
        for memory in (0, None):
            talks = conversations(8, 6)
            with opened(prefix_memory_bytes=memory) as route:
                in_rounds(route, talks, call)
                work = route.engine.work
            few = least(talks)
            kept = "nothing stays" if memory == 0 else "rows stay"
            print(
                f"6 turns x 8 conversations, {name}, {kept}: {work.prompt_tokens:,} prompt tokens"
                f" read (and {work.padded_tokens:,} with padding), {work.shared_tokens:,} shared;"
                f" the least is {few:,}: {work.prompt_tokens / few:.2f} times"
            )


def passes() -> None:
    """64 conversations of 8 turns, each of which goes on as soon as it is answered."""
    for memory in (0, None):
        talks = conversations(64, 8)
        with opened(prefix_memory_bytes=memory) as route:
            in_loops(route, talks)
            work = route.engine.work
        few = least(talks)
        requests = [
            request(prompt, length)
            for talk in talks
            for prompt, length in zip(talk.prompts, talk.lengths, strict=True)
        ]
        with opened(prefix_memory_bytes=memory) as route:
            slots = pg.run(route, requests)
            one = route.engine.work
        answers = [answer for talk in talks for answer in talk.answers]
        same = sum(slot.unwrap().token_ids == ids for slot, ids in zip(slots, answers, strict=True))
        all_of, beforehand = work.passes + work.steps, one.passes + one.steps
        kept = "nothing stays" if memory == 0 else "rows stay"
        print(
            f"64 conversations of 8 turns, {kept}: {all_of:,} passes ({work.passes:,} of them read"
            f" prompts), one call with all turns beforehand {beforehand:,} ({one.passes:,}):"
            f" {all_of / beforehand:.2f} times; {work.prompt_tokens:,} prompt tokens read"
            f" ({work.padded_tokens:,} with padding), the least is {few:,}:"
            f" {work.prompt_tokens / few:.2f} times; {same} of {len(answers)} answers the same"
        )


def memory() -> None:
    """The most memory of what stays, and of the process, with two limits."""
    for limit in (2**20, 2**24):
        talks = conversations(64, 8)
        with opened(prefix_memory_bytes=limit) as route:
            most, prefixes = 0, route.engine.computing.prefixes
            while not talks[0].ended:
                for talk, slot in zip(
                    talks, pg.run(route, [talk.request() for talk in talks]), strict=True
                ):
                    talk.answered(slot.unwrap())
                most = max(most, prefixes.bytes)
            work = route.engine.work
        print(
            f"64 conversations of 8 turns in {limit:,} bytes: at most {most:,} bytes stay,"
            f" {work.prompt_tokens:,} prompt tokens read, the least is {least(talks):,};"
            f" the process held at most {peak_memory():.0f} MiB"
        )


def looped(
    name: str,
    opened: Callable[[], Any],
    counted: Callable[[Any], Callable[[], int]],
    rows: int,
    count: int = 64,
    limit: int = 8,
) -> None:
    """So many conversations of `limit` turns in a pipe, and one call with all of their prompts.

    counted: gives for a route what counts its passes so far. Both are compared with the fewest
    passes possible: a pass gives each conversation at most one token, and so many `rows` at a time.
    """
    chance = random.Random(0)
    requests = [
        {
            "messages": [
                {"role": "user", "content": f"What is {number} + {chance.randrange(99)}?"}
            ],
            "options": {"max_new_tokens": chance.randint(8, 40), "stop": {"ignore_eos": True}},
        }
        for number in range(count)
    ]

    def words(result: Any) -> str:
        drawn = random.Random(str(result.token_ids))
        return " ".join(f"And {drawn.randrange(99)}?" for _ in range(drawn.randint(1, 6)))

    with opened() as route:
        passes = counted(route)
        agents = pg.turns(route, words, limit=limit)
        results = [slot.unwrap() for slot in pg.imap(agents, requests)]
        turns = [turn for result in results for turn in result.rounds]
        loops = passes()
    beforehand = [
        request(turn.prompt_token_ids, turn.options.max_new_tokens or 0) for turn in turns
    ]
    with opened() as route:
        passes = counted(route)
        slots = pg.run(route, beforehand)
        whole = passes()
    same = sum(
        slot.unwrap().token_ids == turn.token_ids for slot, turn in zip(slots, turns, strict=True)
    )
    tokens = [sum(turn.completion_tokens for turn in result.rounds) for result in results]
    fewest = max(max(tokens), -(-sum(tokens) // rows))
    print(
        f"{name}, {count} conversations of {limit} turns by imap(turns), {rows} at a time:"
        f" {loops:,} passes, the fewest possible are {fewest:,}: {loops / fewest:.2f} times; one"
        f" call with all {len(turns)} prompts beforehand {whole:,}: {loops / whole:.2f} times;"
        f" {same} answers the same"
    )


def loops(count: int = 64, limit: int = 8) -> None:
    """On the Hugging Face engine."""

    def counted(route: Any) -> Callable[[], int]:
        return lambda: route.engine.work.passes + route.engine.work.steps

    looped("HF", lambda: opened(batch_size=32), counted, 32, count, limit)


def vllm() -> None:
    """On vLLM, 64 rows at a time."""

    def counted(route: Any) -> Callable[[], int]:
        pg.run(route, [request((300,), 1)])
        engine, count = route.engine._core.running().engine, [0]
        plain = engine.step

        def step() -> Any:
            count[0] += 1
            return plain()

        engine.step = step
        return lambda: count[0]

    settings: dict[str, Any] = {
        "dtype": "float32",
        "kv_cache_memory_bytes": 64 << 20,
        "max_num_seqs": 64,
        "enforce_eager": True,
    }
    looped("vLLM", lambda: pg.backends.vllm("embedded", **settings), counted, 64)


PARTS: dict[str, Callable[[], None]] = {
    "tokens": tokens,
    "passes": passes,
    "loops": loops,
    "memory": memory,
}


def main() -> None:
    for part in sys.argv[1:] or PARTS:
        {**PARTS, "vllm": vllm}[part]()


if __name__ == "__main__":
    main()
