"""vLLM in this process: 256 prompts through pipegen, beside the bare `LLM.generate` with the same ids. Run by `nox -s bench` where vLLM is installed."""

from __future__ import annotations

import random
import tempfile

from measure import REPEATS, interleave, row, speed, write

import pipegen as pg
from pipegen.embedded import export_text

GROUP = "vLLM, in process"
TOKENS = 32


def main() -> None:
    name = "256 prompts, embedded model, vLLM in process"
    try:
        from vllm import LLM, SamplingParams
    except ImportError as refusal:
        write("vllm", [row(name, "LLM.generate", None, "at least 0.97", group=GROUP, note=f"not measured: {refusal}")])
        return
    drawn = random.Random(1)
    settings = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, "max_num_seqs": 32, "kv_cache_memory_bytes": 2**28}
    with tempfile.TemporaryDirectory() as scratch:
        folder = str(export_text(scratch))
        llm = LLM(folder, **settings)  # an engine of its own, with the same settings
        with pg.backends.vllm(folder, **settings) as route:
            ids = [[drawn.randrange(20, 900) for _ in range(drawn.randint(8, 120))] for _ in range(256)]
            options = pg.GenerationOptions(max_new_tokens=TOKENS, stop=pg.StopOptions(ignore_eos=True))
            requests = [pg.TextGenerationRequest(prompt_token_ids=row) for row in ids]
            sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=True)
            made: dict[str, list[list[int]]] = {}

            def ours() -> None:
                made["ours"] = [list(slot.unwrap().token_ids) for slot in pg.run(route, requests, options)]

            def bare() -> None:
                answers = llm.generate([{"prompt_token_ids": row} for row in ids], sampling, use_tqdm=False)
                made["bare"] = [list(answer.outputs[0].token_ids) for answer in answers]

            taken = interleave({"ours": ours, "bare": bare}, REPEATS)
    if made["ours"] != made["bare"]:
        raise AssertionError("the two did not make the same ids")
    write("vllm", [speed(name, "LLM.generate", taken["ours"], taken["bare"], 0.97, group=GROUP)])


if __name__ == "__main__":
    main()
