"""Every list of options is a query of the table of options: their names stand nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pipegen
from pipegen.records.option_table import OPTIONS, SERVER_NAMES, names_in

ROOT = Path(pipegen.__file__).parent
TABLE = {"records/option_records.py", "records/option_groups.py", "records/option_row.py"}
SAMPLING = {
    *names_in("length", "temperature", "filter", "tokens", "penalty", "repeats", "seed", "fit"),
    *(name for name in names_in("stop", "report", "decode") if "_" in name),
}
"""Names that mean nothing but an option."""
EVERYWHERE = {*SAMPLING, *(other for other, name in SERVER_NAMES.items() if name in SAMPLING)}
BODY = "the body of a request: fields whose values are no option's as it is"
ASKED = "options given to something that is run, with their values"
LISTS = {
    "backends/hf/hf_sampling.py": "the formulas of the penalties",
    "backends/servers/openai.py": BODY,
    "backends/servers/sglang_dialect.py": BODY,
    "backends/servers/vllm_dialect.py": BODY,
    "contrib/renderers/renderer_engine.py": BODY,
    "contrib/renderers/renderer_sglang.py": BODY,
    "contrib/sampled_logprobs.py": "the stops that change no probability",
    "contrib/trl.py": "settings of a trainer that have these names",
    "drivers/telemetry.py": "names of the GenAI conventions",
    "cli/demo.py": ASKED,
    "evals/inspect_ai.py": ASKED,
    "evals/lm_eval.py": ASKED,
    "report/drawn.py": "the filters whose formulas are here",
    "report/together.py": ASKED,
    "report/verify.py": ASKED,
    "stages/multi_call.py": ASKED,
    "testing/ask.py": ASKED,
    "testing/conformance_sampling.py": ASKED,
}
"""Where two or more of them stand together, and why."""
ALONE = {
    "backends/hf/hf_sampling.py": "the formulas of the penalties",
    "backends/vllm/vllm_sampling.py": "the option that a refusal names",
    "report/drawn.py": "the filters whose formulas are here",
    "config/schema.py": "servers write -1 for all of top_k",
    "records/options.py": "servers write -1 for all of top_k; a checkpoint says do_sample",
    "testing/conformance_sampling.py": "what each of them must do",
    "backends/servers/openai.py": BODY,
    "backends/servers/sglang_dialect.py": BODY,
    "backends/servers/vllm_dialect.py": BODY,
    "contrib/renderers/renderer_sglang.py": BODY,
    "contrib/trl.py": "settings of a trainer that have these names",
    "drivers/telemetry.py": "names of the GenAI conventions",
}
"""Where one that changes what is chosen stands, and why."""


def _first(node: ast.expr | None) -> str:
    """The name that an item of a list begins with: a text, an attribute, or that of a pair."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, (ast.Tuple, ast.List)) and node.elts:
        return _first(node.elts[0])
    return ""


def _lists(source: str) -> Iterator[set[str]]:
    """The names that stand together in a tuple, list, set or as keys of a mapping, or as words of
    one text.
    """
    for node in ast.walk(ast.parse(source)):
        items: list[str] = []
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            items = [_first(item) for item in node.elts]
        elif isinstance(node, ast.Dict):
            items = [_first(key) for key in node.keys]
        elif isinstance(node, ast.Call) and _first(node.func) in ("split", "attrgetter"):
            texts = [*node.args, getattr(node.func, "value", None)]
            items = [word for text in texts for word in _first(text).split()]
        if len(found := EVERYWHERE.intersection(items)) > 1:
            yield found


def _alone(source: str) -> set[str]:
    names = {*names_in("filter", "tokens", "penalty", "repeats")}
    return {
        str(node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and node.value in names
    }


def _sources() -> dict[str, str]:
    files = {path.relative_to(ROOT).as_posix(): path for path in ROOT.rglob("*.py")}
    return {name: path.read_text() for name, path in files.items() if name not in TABLE}


def test_no_list_of_options_is_written_by_hand() -> None:
    lists = {name: [*_lists(source)] for name, source in _sources().items()}
    assert {name: found for name, found in lists.items() if found and name not in LISTS} == {}
    assert {name for name in LISTS if not lists[name]} == set(), "these need no exception"


def test_what_changes_what_is_chosen_is_named_where_it_is_carried_out_alone() -> None:
    found = {name: _alone(source) for name, source in _sources().items()}
    assert {name: names for name, names in found.items() if names and name not in ALONE} == {}
    assert {name for name in ALONE if not found[name]} == set(), "these need no exception"


@pytest.mark.parametrize(
    "source",
    [
        "A = ('min_p', 'top_k')",
        "A = {'seed': 1, 'temperature': 2}",
        "A = (('top_p', 1), ('seed', 2))",
        "A = (options.top_p, options.top_k)",
        "A = 'max_tokens min_p'.split()",
        "A = operator.attrgetter('top_k', 'min_p')",
    ],
)
def test_each_form_of_a_list_is_found(source: str) -> None:
    assert len([*_lists(source)]) == 1


def test_every_option_has_a_role_and_filters_are_tried_at_their_narrowest() -> None:
    assert [name for name, entry in OPTIONS.items() if not entry.role] == []
    assert all(OPTIONS[name].row.trial for name in names_in("filter"))
