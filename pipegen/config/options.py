"""Options files: generation options as JSON or YAML.

A file holds one mapping of options, flat (`strip_whitespace: true`) or nested as the records are (`decode: {strip_whitespace: true}`). Nothing in it
is ignored: an unknown name, a value that its option does not take, and a key that occurs twice are refused, with the file and the line.

    # options.yaml
    max_new_tokens: 256
    temperature: 0.2
    stop: ["\\n\\n"]
"""

from __future__ import annotations

import os

from pipegen.config.files import read_plain
from pipegen.records.fields import InvalidField
from pipegen.records.options import GenerationOptions, options_from

__all__ = ["read_options"]


def read_options(path: str | os.PathLike[str]) -> GenerationOptions:
    """The options of a `.json`, `.yaml` or `.yml` file.

    Raises `InvalidField` (`UnknownField` for an unknown name, with the nearest one), which names the file and the place in it, also when the file
    cannot be read.
    """
    values, place = read_plain(path, "an options file")
    if not isinstance(values, dict):
        raise InvalidField(f"{place}: takes a mapping of options, not {type(values).__name__}")
    for name, value in values.items():  # one by one: so each refusal has its place
        options_from({name: value}, place.at(name).line())
    return options_from(values, place.line())
