#!/usr/bin/env bash
# In inspect_ai, `match(numeric=True)` scores a wrong number as correct when its first five digits are right.
#
# The docs say that symbols are stripped "before numbers are normalized and compared", so one expects
# that two integers match when they are equal, above all with location="exact". But to normalize
# a number is to round it to five significant digits. So all answers near a target of six digits or
# more are correct: for 487 * 653 = 318011 each number from 318006 to 318014. Tasks of arithmetic, of
# counts or of money look easier than they are. A wrong answer of up to five digits is incorrect, so
# small trials look right. Without `numeric` the answers are compared as texts, and are scored right.
# inspect_ai 0.3.285. Checked 2026-11-30.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet inspect_ai==0.3.285
"$python" - "$folder" <<'PYTHON'
import sys
from importlib.metadata import version

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import match

print(f"inspect_ai {version('inspect_ai')}")
# A question, its right answer, and the wrong answer that the model gives.
rows = [
    ("How much is 123 * 457?", "56211", "56216"),
    ("How much is 487 * 653?", "318011", "318006"),
    ("How much is 2 ** 31 - 1?", "2147483647", "2147500000"),
    ("How many dollars are 250 * $5,000?", "1250000", "$1,250,049"),
]
scorers = {
    "match()": match(),
    "match(numeric=True)": match(numeric=True),
    'match("exact", numeric=True)': match("exact", numeric=True),
}
found = {}
for name, scorer in scorers.items():
    replies = [ModelOutput.from_content("mockllm/model", reply) for _, _, reply in rows]
    for reply in replies:
        reply.usage = ModelUsage()  # Without it a tokenizer is downloaded, to count the tokens.
    model = get_model("mockllm/model", custom_outputs=replies, memoize=False)
    data = [Sample(input=question, target=target) for question, target, _ in rows]
    task = Task(dataset=data, scorer=scorer)
    log = eval(task, model=model, display="none", log_dir=sys.argv[1], max_samples=1)[0]
    scores = [next(iter(sample.scores.values())) for sample in log.samples]
    for (_, target, reply), sample, score in zip(rows, log.samples, scores, strict=True):
        if (sample.target, sample.output.completion) != (target, reply):
            sys.exit("The replies came in another order.")
        print(f"  {name:28} target {target:10} reply {reply:10} score {score.value} ({score.answer})")
    accuracy = log.results.scores[0].metrics["accuracy"].value
    print(f"  {name:28} accuracy {accuracy}")
    found[name] = "".join(score.value for score in scores)
sys.exit(list(found.values()) != ["IIII", "ICCC", "ICCC"])
PYTHON
echo "Beyond five digits a wrong number is correct, and the log gives the rounded number as the answer."
