"""Every list of options is a query of the table of options: their names stand nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
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
    "backends/hf/hf_sampling.py": (
        "the formulas of the penalties",
        "frequency_penalty presence_penalty",
    ),
    "backends/servers/openai.py": (
        BODY,
        "ignore_eos min_tokens repetition_penalty skip_special_tokens stop_token_ids top_k",
    ),
    "backends/servers/sglang_dialect.py": (
        BODY,
        "ignore_eos min_new_tokens skip_special_tokens stop_token_ids top_k top_logprobs",
    ),
    "backends/servers/vllm_dialect.py": (
        BODY,
        "bad_words ignore_eos min_tokens skip_special_tokens stop_token_ids top_k",
    ),
    "contrib/renderers/renderer_engine.py": (BODY, "skip_special_tokens stop_token_ids"),
    "contrib/renderers/renderer_sglang.py": (
        BODY,
        "ignore_eos max_new_tokens skip_special_tokens stop_token_ids top_k",
    ),
    "contrib/sampled_logprobs.py": (
        "the stops that change no probability",
        "ignore_eos stop_token_ids",
    ),
    "contrib/trl.py": (
        "settings of a trainer that have these names",
        "max_new_tokens min_p repetition_penalty seed temperature top_k top_p",
    ),
    "drivers/telemetry.py": (
        "names of the GenAI conventions",
        "frequency_penalty max_new_tokens presence_penalty seed temperature top_k top_p",
    ),
    "cli/demo.py": (ASKED, "seed temperature"),
    "evals/inspect_ai.py": (ASKED, "max_new_tokens prompt_logprobs"),
    "evals/lm_eval.py": (ASKED, "max_new_tokens stop_token_ids"),
    "report/drawn.py": ("the filters whose formulas are here", "min_p top_k top_p"),
    "report/together.py": (ASKED, "ignore_eos max_new_tokens temperature top_logprobs"),
    "report/verify.py": (ASKED, "max_new_tokens temperature"),
    "stages/multi_call.py": (
        ASKED,
        "max_new_tokens max_thinking_tokens min_new_tokens prompt_logprobs seed",
    ),
    "testing/ask.py": (ASKED, "max_new_tokens temperature"),
    "testing/conformance_sampling.py": (ASKED, "min_p top_k top_p"),
}
"""Where two or more of them stand together: why, and which."""
ALONE = {
    "backends/hf/hf_sampling.py": (
        "the formulas of the penalties",
        "frequency_penalty presence_penalty",
    ),
    "backends/vllm/vllm_sampling.py": ("the option that a refusal names", "bad_words"),
    "report/drawn.py": ("the filters whose formulas are here", "min_p top_k top_p"),
    "config/schema.py": ("servers write -1 for all of top_k", "top_k"),
    "records/options.py": (
        "servers write -1 for all of top_k; a checkpoint says do_sample",
        "top_k",
    ),
    "testing/conformance_sampling.py": (
        "what each of them must do",
        (
            "allowed_token_ids bad_words frequency_penalty min_p no_repeat_ngram_size"
            " repetition_penalty top_k top_p"
        ),
    ),
    "backends/servers/openai.py": (BODY, "repetition_penalty top_k"),
    "backends/servers/sglang_dialect.py": (BODY, "top_k"),
    "backends/servers/vllm_dialect.py": (BODY, "bad_words top_k"),
    "contrib/renderers/renderer_sglang.py": (BODY, "top_k"),
    "contrib/trl.py": (
        "settings of a trainer that have these names",
        "min_p repetition_penalty top_k top_p",
    ),
    "drivers/telemetry.py": (
        "names of the GenAI conventions",
        "frequency_penalty presence_penalty top_k top_p",
    ),
}
"""Where one that changes what is chosen stands: why, and which."""


def _first(node: ast.expr | None) -> str:
    """The name that an item of a list begins with: a text, an attribute, or that of a pair."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return node.id
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
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = re.split(r"[\s|,;/]+", node.value)
            items = words if EVERYWHERE.issuperset(words) else []
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            items = [_first(item) for item in node.elts]
        elif isinstance(node, ast.Dict):
            items = [_first(key) for key in node.keys]
        elif isinstance(node, ast.Call) and _first(node.func) in ("split", "attrgetter", "dict"):
            texts = [*node.args, getattr(node.func, "value", None)]
            items = [word for text in texts for word in re.findall(r"\w+", _first(text))]
            items += [keyword.arg or "" for keyword in node.keywords]
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
    """But in the files that have a reason, and there of no other options."""
    lists = {name: _words(*_lists(source)) for name, source in _sources().items()}
    assert {name: names for name, names in lists.items() if names} == _listed(LISTS)


def test_what_changes_what_is_chosen_is_named_where_it_is_carried_out_alone() -> None:
    found = {name: _words(_alone(source)) for name, source in _sources().items()}
    assert {name: names for name, names in found.items() if names} == _listed(ALONE)


def _words(*names: set[str]) -> str:
    return " ".join(sorted(set[str]().union(*names)))


def _listed(exceptions: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    return {file: names for file, (_, names) in exceptions.items()}


@pytest.mark.parametrize(
    "source",
    [
        "A = ('min_p', 'top_k')",
        "A = {'seed': 1, 'temperature': 2}",
        "A = (('top_p', 1), ('seed', 2))",
        "A = (options.top_p, options.top_k)",
        "A = 'max_tokens min_p'.split()",
        "A = operator.attrgetter('top_k', 'min_p')",
        "A = dict(top_k=1, min_p=0.1)",
        "A = 'max_tokens|min_p'.split('|')",
        "A = re.compile('top_k|min_p')",
    ],
)
def test_each_form_of_a_list_is_found(source: str) -> None:
    assert _words(*_lists(source)).count(" ") == 1


def test_every_option_has_a_role_and_filters_are_tried_at_their_narrowest() -> None:
    assert [name for name, entry in OPTIONS.items() if not entry.role] == []
    assert all(OPTIONS[name].row.trial for name in names_in("filter"))
