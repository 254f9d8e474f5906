#!/usr/bin/env bash
# pydantic cannot read the JSON that it wrote, where a field is a Literal of an Enum's member.
#
# A field `kind: Literal[Kind.DOG]` marks one model among several. pydantic writes the member as its
# value, "dog", and the JSON Schema of the model says `"const": "dog"`. So one expects that
# `model_validate_json` takes what `model_dump_json` wrote, as it does where the field is the Enum
# itself, and where the Enum is a `StrEnum`. But for a plain Enum the Literal compares with the member:
# "dog" is refused, in strict mode and without it. A discriminator of a union refuses it too. So a model
# that answers by that schema, as in the call of a tool, is always wrong.
#
# pydantic 2.14.3. Checked 2026-11-29.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
python="$folder/venv/bin/python"
"$python" -m pip install --quiet pydantic==2.14.3
cat >"$folder/show.py" <<'PYTHON'
import enum
from typing import Annotated, Literal

import pydantic


class Kind(enum.Enum):
    DOG = "dog"
    CAT = "cat"


class Word(enum.StrEnum):
    DOG = "dog"


class Dog(pydantic.BaseModel):
    kind: Literal[Kind.DOG]


class Cat(pydantic.BaseModel):
    kind: Literal[Kind.CAT]


class Pet(pydantic.RootModel):
    root: Annotated[Dog | Cat, pydantic.Field(discriminator="kind")]


class AnyKind(pydantic.BaseModel):
    kind: Kind


class WordDog(pydantic.BaseModel):
    kind: Literal[Word.DOG]


def read_again(model: pydantic.BaseModel) -> bool:
    written = model.model_dump_json()
    try:
        again = type(model).model_validate_json(written) == model
    except pydantic.ValidationError as error:
        again = False
        print("  ", error.errors()[0]["msg"])
    print(type(model).__name__, "wrote", written, "and reads it" if again else "and refuses it")
    return again


print("pydantic", pydantic.VERSION)
kind = Dog.model_json_schema()["properties"]["kind"]
print("the schema of Dog's field:", kind)
assert kind["const"] == "dog"
assert read_again(AnyKind(kind=Kind.DOG)) and read_again(WordDog(kind=Word.DOG))
assert not read_again(Dog(kind=Kind.DOG))
assert not read_again(Pet(root=Dog(kind=Kind.DOG)))
PYTHON
"$python" "$folder/show.py"
