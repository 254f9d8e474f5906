"""The flags of `pipegen generate`, and those of them that `pipegen estimate` takes too.
`with_flags` makes the flags of a command of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pipegen.records.engine_list import TYPES

__all__ = ["FILES", "MODEL", "AskedFlags", "InputFlags", "RunFlags"]

FILES, MODEL, FOLDER = "Input and output", "Model", "A folder of images, or one question"
MANY = "Many GPUs and machines"


@dataclass(frozen=True, kw_only=True)
class InputFlags:
    """How the requests of IN are read."""

    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="FIELD=COLUMN,...",
            help=(
                "Columns that have other names, such as user=question,id=uid. The text of user is a"
                " user's turn; a prompt is continued."
            ),
            rich_help_panel=FILES,
        ),
    ] = None
    drop_final_answer: Annotated[
        bool,
        typer.Option(
            "--drop-final-answer",
            help=(
                "Leave the answer out that a row ends with, as in data sets; OUT has it as"
                " references."
            ),
            rich_help_panel=FILES,
        ),
    ] = False
    image_root: Annotated[
        str | None,
        typer.Option(
            "--image-root",
            metavar="DIR",
            help="Image paths start here, and nothing outside is read. Default: IN's folder.",
            rich_help_panel=FILES,
        ),
    ] = None
    allow_http: Annotated[
        bool,
        typer.Option(
            "--allow-http", help="Fetch images from http and https URLs.", rich_help_panel=FILES
        ),
    ] = False
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="HOST",
            help="Fetch from this host though its address is private.",
            rich_help_panel=FILES,
        ),
    ] = None
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt",
            help="What to ask of each image; without IN, the one question.",
            rich_help_panel=FOLDER,
        ),
    ] = None
    system: Annotated[
        str | None,
        typer.Option(
            "--system",
            help="The system prompt that goes before, where a request has none of its own.",
            rich_help_panel=FOLDER,
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
        typer.Option(
            "--model", "-m", help="A local folder, a hub name, or: embedded.", rich_help_panel=MODEL
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="A chat file, in place of --model and its flags.",
            rich_help_panel=MODEL,
        ),
    ] = None
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent", metavar="ID", help="Which of the chat file's models.", rich_help_panel=MODEL
        ),
    ] = None
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            help=f"The engine, as in chat files: {', '.join(TYPES)}.",
            rich_help_panel=MODEL,
        ),
    ] = "hf"
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            "--plugin",
            metavar="NAME[:ARG=VALUE,...]",
            help=(
                "Attach a plugin, such as balanced_json:max_objects=2; may be given several times."
            ),
            rich_help_panel=MODEL,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class AskedFlags(InputFlags, ModelFlags):
    """What is asked, how it is read, and which model answers."""

    options_file: Annotated[
        Path | None,
        typer.Option(
            "--options",
            metavar="FILE",
            help="Generation options as .json or .yaml.",
            rich_help_panel=FILES,
        ),
    ] = None
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            metavar="NAME=N",
            help="Raise what a request may ask for, such as max_samples=5000.",
            rich_help_panel=FILES,
        ),
    ] = None
    image: Annotated[
        list[str] | None,
        typer.Option(
            "--image",
            metavar="FILE",
            help="An image of the one question; may be given several times.",
            rich_help_panel=FOLDER,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RunFlags(AskedFlags):
    """What is written, and how it is run."""

    fallback: Annotated[
        str | None,
        typer.Option(
            "--fallback",
            help="The engine that takes over what --backend cannot do.",
            rich_help_panel=MODEL,
        ),
    ] = None
    fallback_when: Annotated[
        list[str] | None,
        typer.Option(
            "--fallback-when",
            metavar="ERROR",
            help=(
                "The errors with which it takes over; may be given several times. Default:"
                " UnsupportedMultimodal, UnsupportedOption, UnsupportedPlugin."
            ),
            rich_help_panel=MODEL,
        ),
    ] = None
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="OUT",
            help="A .jsonl, .parquet, .arrow, .csv or .tsv file, or - for stdout (the default).",
            rich_help_panel=FILES,
        ),
    ] = None
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace OUT, and sidecars, where they exist.",
            rich_help_panel=FILES,
        ),
    ] = False
    restart: Annotated[
        bool,
        typer.Option(
            "--restart",
            help="Start again: the answers that OUT.job holds are removed.",
            rich_help_panel=FILES,
        ),
    ] = False
    retry: Annotated[
        str,
        typer.Option(
            "--retry",
            metavar="retryable|all|none|TYPE",
            help="Which failed requests of OUT.job are sent again.",
            rich_help_panel=FILES,
        ),
    ] = "retryable"
    brief: Annotated[
        bool,
        typer.Option(
            "--brief",
            help=(
                "Lines of OUT have only id, text, finish and error; a table has no token ids and no"
                " log probabilities."
            ),
            rich_help_panel=FILES,
        ),
    ] = False
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="No progress and no summary.", rich_help_panel=FILES),
    ] = False
    summary: Annotated[
        Path | None,
        typer.Option(
            "--summary",
            metavar="FILE",
            help="Write counts, times and rates of the run to FILE, as JSON.",
            rich_help_panel=FILES,
        ),
    ] = None
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            metavar="SECONDS",
            min=0,
            help="Time for requests in flight to end at Ctrl-C; 0 ends at once.",
            rich_help_panel=FILES,
        ),
    ] = 5.0
    in_flight: Annotated[
        int | None,
        typer.Option(
            "--in-flight",
            min=1,
            help="Requests in flight at a time. Default: as many as keep the engine full.",
            rich_help_panel=FILES,
        ),
    ] = None
    sidecar: Annotated[
        str | None,
        typer.Option(
            "--sidecar",
            metavar="txt|json",
            help="Write each answer beside its image: a.png, a.txt.",
            rich_help_panel=FOLDER,
        ),
    ] = None
    shard: Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="I/N",
            help=(
                "Send only part I of N, 1/N to N/N, and keep its answers in OUT.job. See also: export."
            ),
            rich_help_panel=MANY,
        ),
    ] = None
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            metavar="N",
            min=1,
            help="Run N engines on Ray, each on its own part of the GPUs.",
            rich_help_panel=MANY,
        ),
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="[ADDRESS]",
            help="Run on the Ray cluster at ADDRESS, on this one, or on this machine.",
            rich_help_panel=MANY,
        ),
    ] = None
    gpus_per_replica: Annotated[
        float | None,
        typer.Option(
            "--gpus-per-replica",
            metavar="K",
            min=0,
            help="GPUs of each. Default: one, where there are any.",
            rich_help_panel=MANY,
        ),
    ] = None
