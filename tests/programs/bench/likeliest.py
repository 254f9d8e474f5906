"""How fast distributions are written: a million tokens with the 32 likeliest ones of each, half of
them prompts, to Parquet, in processor time. `python tests/programs/bench/likeliest.py [tokens]`.

A hundred results are made before, and written over and over: making them and freeing them is not
counted. An id and its log probability are 8 bytes, as the file holds them before compression.
Prints one line of JSON.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

import pipegen as pg
from pipegen.io.table_out import arrow_out
from pipegen.io.tables import Columns, TableRow
from pipegen.records.options import resolve
from pipegen.records.results import TokenLogprob

LIKELIEST, LENGTH, VOCABULARY, KEPT, LEAST = 32, 500, 150_000, 100, 50.0


def result(draw: random.Random) -> pg.GenerationResult:
    """An answer and a prompt of `LENGTH` tokens each."""

    def token() -> TokenLogprob:
        values = sorted([-20 * draw.random() for _ in range(LIKELIEST)], reverse=True)
        top = tuple(zip(draw.sample(range(VOCABULARY), LIKELIEST), values, strict=True))
        return TokenLogprob(token_id=top[0][0], logprob=top[0][1], top=top)

    prompt, answer = ([token() for _ in range(LENGTH)] for _ in range(2))
    return pg.GenerationResult(
        text="a" * LENGTH,
        raw_text="a" * LENGTH,
        prompt_token_ids=tuple([token.token_id for token in prompt]),
        token_ids=tuple([token.token_id for token in answer]),
        logprobs=tuple(answer),
        prompt_logprobs=tuple(prompt),
        finish=pg.Finish.EOS,
        options=resolve(pg.GenerationOptions(top_logprobs=LIKELIEST, prompt_logprobs=True)),
    )


def main() -> None:
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    draw = random.Random(0)
    slots = [pg.Success(result(draw)) for _ in range(KEPT)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.parquet"
        began = time.process_time()
        with (
            path.open("wb") as stream,
            arrow_out(stream, pa.schema([]), Columns(), form=".parquet", model="none") as write,
        ):
            for number in range(tokens // (2 * LENGTH)):
                write(TableRow({}), number, slots[number % KEPT])
        spent = time.process_time() - began
        size = path.stat().st_size
    written = tokens * LIKELIEST * 8 / 1e6
    found = {
        "tokens": tokens,
        "likeliest": LIKELIEST,
        "mb": round(written),
        "mb_in_the_file": round(size / 1e6),
        "seconds": round(spent, 2),
        "mb_a_second": round(written / spent, 1),
        "most_memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    print(json.dumps(found))
    if found["mb_a_second"] < LEAST:
        sys.exit(f"{found['mb_a_second']} MB/s, and at least {LEAST:g} were promised")


if __name__ == "__main__":
    main()
