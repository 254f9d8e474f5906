#!/usr/bin/env bash
# torch's flash attention on a CPU reports a log-sum-exp of 0 for a query that sees no key of a part.
# Attention over parts (a shared prefix, pages, ring attention) is joined by each part's log-sum-exp.
# A part that a query does not see has to weigh nothing: minus infinity, as flex_attention reports.
# The CPU op gives zeros for the output and 0 for the log-sum-exp, so the empty part gets the weight
# exp(0), and the joined output is too small. Without a masked part both ways are equal, so that only
# rows of different lengths in one batch show it.
# torch 2.13.0, numpy 2.4.6. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet torch==2.13.0 numpy==2.4.6
"$python" - <<'PYTHON'
import sys
import warnings

import torch
from torch.nn.attention.flex_attention import flex_attention

warnings.simplefilter("ignore")  # flex_attention is not compiled here
print(f"torch {torch.__version__}")
torch.manual_seed(0)
query, keys, values = (torch.randn(1, 1, count, 16) for count in (2, 6, 6))
seen = torch.ones(2, 6, dtype=torch.bool)
seen[1, 3:] = False  # the second query sees the first part alone
whole = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=seen)


def flash(part):
    mask = torch.where(seen[:, part], 0.0, -torch.inf)[None, None]
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys[:, :, part], values[:, :, part], attn_mask=mask
    )


def flex(part):
    def score(number, batch, head, row, column):
        return torch.where(seen[:, part][row, column], number, -torch.inf)

    return flex_attention(
        query, keys[:, :, part], values[:, :, part], score_mod=score, return_lse=True
    )


wrong = {}
for name, attend in (("flash on a CPU", flash), ("flex_attention", flex)):
    outputs, sums = zip(*(attend(part) for part in (slice(0, 3), slice(3, 6))))
    weights = torch.stack(sums).softmax(dim=0)[..., None]
    joined = (torch.stack(outputs) * weights).sum(dim=0)
    wrong[name] = (joined - whole).abs().amax(dim=-1).flatten().tolist()
    print(f"  {name}: log-sum-exp of the unseen part {sums[1][0, 0, 1].item()},"
          f" largest difference of each query {[f'{one:.1e}' for one in wrong[name]]}")
few, many = wrong["flash on a CPU"]
sys.exit(not (few < 1e-5 < 1e-2 < many and max(wrong["flex_attention"]) < 1e-5))
PYTHON
echo "Where a part may be masked whole, its weight has to be set by hand."
