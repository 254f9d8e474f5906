"""The flags of `pipegen generate`, and those of them that `pipegen estimate` takes too.
`with_flags` makes the flags of a command of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pipegen.records.engine_list import TYPES

file_flag, model_flag, server_flag, folder_flag, ray_flag = (
    partial(typer.Option, rich_help_panel=section)
    for section in (
        "Input and output",
        "Model",
        "Server",
        "A folder of images, or one question",
        "Many GPUs and machines",
    )
)
"""A flag of each section of the help."""


@dataclass(frozen=True, kw_only=True)
class InputFlags:
    """How the requests of IN are read."""

    columns: Annotated[
        list[str] | None,
        file_flag(
            "--map",
            metavar="FIELD=COLUMN,...",
            help=(
                "Columns that have other names, such as user=question,id=uid. The text of user is a"
                " user's turn; a prompt is continued."
            ),
        ),
    ] = None
    drop_final_answer: Annotated[
        bool,
        file_flag(
            "--drop-final-answer",
            help=(
                "Leave the answer out that a row ends with, as in data sets; OUT has it as"
                " references."
            ),
        ),
    ] = False
    image_root: Annotated[
        str | None,
        file_flag(
            metavar="DIR",
            help="Image paths start here, and nothing outside is read. Default: IN's folder.",
        ),
    ] = None
    allow_http: Annotated[
        bool,
        file_flag("--allow-http", help="Fetch images from http and https URLs."),
    ] = False
    allow_host: Annotated[
        list[str] | None,
        file_flag(
            metavar="HOST",
            help="Fetch from this host though its address is private.",
        ),
    ] = None
    prompt: Annotated[
        str | None,
        folder_flag(help="What to ask of each image; without IN, the one question."),
    ] = None
    system: Annotated[
        str | None,
        folder_flag(
            help="The system prompt that goes before, where a request has none of its own.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ModelFlags:
    """What is asked, and which model answers."""

    source: Annotated[
        str | None,
        typer.Argument(
            metavar="IN",
            help=(
                "A .jsonl, .json, .parquet, .arrow, .csv, .tsv or .txt file, or - for stdin, or a"
                " folder of images or tables, or an image with --prompt."
            ),
        ),
    ] = None
    model: Annotated[
        str | None,
        model_flag("--model", "-m", help="A local folder, a hub name, or: embedded."),
    ] = None
    config: Annotated[
        Path | None,
        model_flag(
            "--config", "-c", metavar="FILE", help="A chat file, in place of --model and its flags."
        ),
    ] = None
    agent: Annotated[
        str | None,
        model_flag(metavar="ID", help="Which of the chat file's models."),
    ] = None
    backend: Annotated[
        str | None,
        model_flag(help=f"The engine, as in chat files: {', '.join(TYPES)}. Default: hf."),
    ] = None
    plugin: Annotated[
        list[str] | None,
        model_flag(
            metavar="NAME[:ARG=VALUE,...]",
            help=(
                "Attach a plugin, such as balanced_json:max_objects=2; may be given several times."
            ),
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class AskedFlags(InputFlags, ModelFlags):
    """What is asked, how it is read, and which model answers."""

    options_file: Annotated[
        Path | None,
        file_flag("--options", metavar="FILE", help="Generation options as .json or .yaml."),
    ] = None
    limit: Annotated[
        list[str] | None,
        file_flag(
            metavar="NAME=N",
            help="Raise what a request may ask for, such as max_samples=5000.",
        ),
    ] = None
    image: Annotated[
        list[str] | None,
        folder_flag(
            metavar="FILE",
            help="An image of the one question; may be given several times.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RunFlags(AskedFlags):
    """What is written, and how it is run."""

    fallback: Annotated[
        str | None,
        model_flag(help="The engine that takes over what --backend cannot do."),
    ] = None
    fallback_when: Annotated[
        list[str] | None,
        model_flag(
            metavar="ERROR",
            help=(
                "The errors with which it takes over; may be given several times. Default:"
                " UnsupportedMultimodal, UnsupportedOption, UnsupportedPlugin."
            ),
        ),
    ] = None
    out: Annotated[
        str | None,
        file_flag(
            "--out",
            "-o",
            metavar="OUT",
            help="A .jsonl, .parquet, .arrow, .csv or .tsv file, or - for stdout (the default).",
        ),
    ] = None
    overwrite: Annotated[
        bool,
        file_flag("--overwrite", help="Replace OUT, and sidecars, where they exist."),
    ] = False
    restart: Annotated[
        bool,
        file_flag("--restart", help="Start again: the answers that OUT.job holds are removed."),
    ] = False
    retry: Annotated[
        str,
        file_flag(
            metavar="retryable|all|none|TYPE",
            help="Which failed requests of OUT.job are sent again.",
        ),
    ] = "retryable"
    brief: Annotated[
        bool,
        file_flag(
            "--brief",
            help=(
                "Lines of OUT have only id, text, finish and error; a table has no token ids and no"
                " log probabilities."
            ),
        ),
    ] = False
    quiet: Annotated[
        bool,
        file_flag("--quiet", "-q", help="No progress and no summary."),
    ] = False
    summary: Annotated[
        Path | None,
        file_flag(
            metavar="FILE",
            help="Write counts, times and rates of the run to FILE, as JSON.",
        ),
    ] = None
    grace: Annotated[
        float,
        file_flag(
            metavar="SECONDS",
            min=0,
            help="Time for requests in flight to end at Ctrl-C; 0 ends at once.",
        ),
    ] = 5.0
    in_flight: Annotated[
        int | None,
        file_flag(
            min=1,
            help="Requests in flight at a time. Default: as many as keep the engine full.",
        ),
    ] = None
    sidecar: Annotated[
        str | None,
        folder_flag(
            metavar="txt|json",
            help="Write each answer beside its image: a.png, a.txt.",
        ),
    ] = None
    shard: Annotated[
        str | None,
        ray_flag(
            metavar="I/N",
            help=(
                "Send only part I of N, 1/N to N/N, and keep its answers in OUT.job. See also: export."
            ),
        ),
    ] = None
    replicas: Annotated[
        int | None,
        ray_flag(
            metavar="N",
            min=1,
            help="Run N engines on Ray, each on its own part of the GPUs.",
        ),
    ] = None
    ray: Annotated[
        str | None,
        ray_flag(
            metavar="[ADDRESS]",
            help="Run on the Ray cluster at ADDRESS, on this one, or on this machine.",
        ),
    ] = None
    gpus_per_replica: Annotated[
        float | None,
        ray_flag(
            metavar="K",
            min=0,
            help="GPUs of each. Default: one, where there are any.",
        ),
    ] = None
