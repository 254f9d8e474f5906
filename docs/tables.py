"""Write the tables of the documentation, and how pipegen is installed, from the code: `python docs/tables.py`. Tests see that the pages hold them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path

import pipegen.records.options
from pipegen.config.chat_fields import field_help, passed_on
from pipegen.config.keys import ALIASES, KEYS, TYPES
from pipegen.config.schema import field_words, schema
from pipegen.core.distribution import DISTRIBUTION, install_command
from pipegen.engines.capabilities import ENGINES, FEATURES
from pipegen.records.options import DEFAULTS, GenerationOptions, flat_values

PAGES = Path(__file__).parent
INSTALLS = re.compile(rf'pip install "(?:\.|{DISTRIBUTION})\[([a-z,]+)\]"')
NESTED = {
    "stop": "StopOptions",
    "decode": "DecodeOptions",
    "chat": "ChatTemplateOptions",
    "preprocess": "VlmPreprocessOptions",
    "structured": "StructuredOptions",
}


def shown_type(hint: str) -> str:
    """What a field takes, in the words of the reader: without its check and without None."""
    inner = re.sub(r"^Annotated\[(.*?), \w+(\(.*\))?\]$", r"\1", hint).removesuffix(" | None")
    return re.sub(r"^Literal\[(.*)\]$", lambda found: " or ".join(found.group(1).split(", ")), inner).replace("Mapping[str, Any]", "mapping").replace("|", "or")


def options_table() -> str:
    """One row for each option."""
    defaults, rows = flat_values(DEFAULTS), ["| option, its type and default | |", "| --- | --- |"]
    groups = [("", GenerationOptions), *((name, getattr(pipegen.records.options, kind)) for name, kind in NESTED.items())]
    for group, kind in groups:
        words = field_words(kind)
        for field in dataclasses.fields(kind):
            if field.name in NESTED and not group:
                continue
            default = defaults[field.name]
            shown = "" if default is None else f", `{dict(default) if isinstance(default, Mapping) else default!r}`"
            name = f"{group}.{field.name}" if group else field.name
            rows.append(f"| `{name}`<br>{shown_type(str(field.type))}{shown} | {words[field.name]} |")
    return "\n".join(rows)


def capabilities_table() -> str:
    """What each engine honours at best."""
    rows = ["| capability | " + " | ".join(ENGINES) + " |", "| --- |" + " --- |" * len(ENGINES)]
    for name in (*FEATURES, *sorted({option for honours in ENGINES.values() for option in honours} - set(FEATURES))):
        label = f"`{name}`: {FEATURES[name]}" if name in FEATURES else f"`{name}`"
        rows.append(f"| {label} | " + " | ".join("✓" if name in honours else "" for honours in ENGINES.values()) + " |")
    return "\n".join(rows)


def keys_table() -> str:
    """The keys that a backend takes in a file."""
    rows = [f"| `type: {kind}` | {words} |" for kind, words in TYPES.items()]
    rows = ["| type | |", "| --- | --- |", *rows, "", "| key | taken by | |", "| --- | --- | --- |"]
    rows += [f"| `{name}` | {', '.join(key.constructors)} | {key.words} |" for name, key in KEYS.items()]
    rows += ["", "| name | option |", "| --- | --- |", *(f"| `{alias}` | `{name}` |" for alias, name in ALIASES.items())]
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, dialects in passed_on().items():
        groups.setdefault(dialects, []).append(f"`{name}`")
    rows += ["", "| passed on as they are | |", "| --- | --- |", *(f"| {field_help(dialects)} | {', '.join(names)} |" for dialects, names in groups.items())]
    return "\n".join(rows)


TABLES: Mapping[str, Callable[[], str]] = {"options.md": options_table, "engines.md": capabilities_table, "config.md": keys_table}
SCHEMA = Path(str(resources.files("pipegen.config"))) / "chat.schema.json"


def with_table(page: str, table: str) -> str:
    """The page with what stands between its two markers replaced."""
    before, rest = page.split("<!-- table -->\n", 1)
    after = rest.split("<!-- end of table -->", 1)[1]
    return f"{before}<!-- table -->\n\n{table}\n\n<!-- end of table -->{after}"


def with_commands(page: str) -> str:
    """The page with every command that installs pipegen as it is now: from a clone, or from the Python package index."""
    return INSTALLS.sub(lambda found: install_command(found[1]), page)


if __name__ == "__main__":
    for path in (PAGES.parent / "README.md", *PAGES.rglob("*.md")):
        path.write_text(with_commands(path.read_text(encoding="utf-8")), encoding="utf-8")
    for name, table in TABLES.items():
        page = PAGES / name
        page.write_text(with_table(page.read_text(encoding="utf-8"), table()), encoding="utf-8")
    SCHEMA.write_text(json.dumps(schema(), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
