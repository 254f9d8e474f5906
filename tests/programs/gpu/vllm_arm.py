"""vLLM over the skewed rows, which come as JSON on stdin: prints the seconds of the second call. It
is not told of pipegen, and needs vLLM alone.
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    from vllm import LLM, SamplingParams

    work = json.load(sys.stdin)
    engine = LLM(work["model"], dtype=work["dtype"], max_num_seqs=work["rows"], max_model_len=512)
    prompts = [{"prompt_token_ids": ids} for ids in work["ids"]]
    params = [
        SamplingParams(max_tokens=length, temperature=0.0, ignore_eos=True, detokenize=False)
        for length in work["lengths"]
    ]
    engine.generate(prompts[: 2 * work["rows"]], params[: 2 * work["rows"]], use_tqdm=False)
    begun = time.perf_counter()
    engine.generate(prompts, params, use_tqdm=False)
    print(time.perf_counter() - begun)


if __name__ == "__main__":
    main()
