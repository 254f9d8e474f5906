"""The commands and their flags; what they do is in the module of each."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pipegen.cli.app_results import add_commands
from pipegen.cli.flags import InSections, with_flags
from pipegen.cli.run_flags import RunFlags
from pipegen.records.option_table import OPTIONS

app = typer.Typer(
    help=(
        "Generate text from prompts and images: render once, run on any engine, get the same text"
        " back, and never lose a request."
    ),
    epilog="Begin with:  pipegen demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

ORDER = (
    *("demo", "doctor", "estimate", "generate", "view", "diff"),
    *("export", "chat", "verify", "lm-eval", "schema"),
)
"""The commands in the order of work."""

GENERATE = """Answer every request of IN: one line out for each line in, in order.

IN is a file of JSON Lines, or - for stdin. Each line is one request:

\b
    {"id": "a", "prompt": "Once upon a time"}
    {"id": "b", "messages": [{"role": "user", "content": "What is 2 + 3?"}]}
    {"id": "c", "prompt": "Describe the image.", "images": ["images/cat.png"]}
    {"id": "d", "prompt": "1, 2, 3,", "options": {"max_new_tokens": 20}}

IN may also be a table (Parquet, Arrow, CSV), a .txt file with one prompt on each line, or a folder
of images with one --prompt for all of them. Without IN, --prompt is one question (a user's turn).

With -o the run is a job: if it is stopped, the same command goes on.

Exit code: 0 all good, 1 some requests failed or ran out of tokens while thinking, 2 bad usage, 3 a
bug of pipegen's failed a request (the others were answered).
"""

MORE = """A prompt is completed as it is, without a chat template; with images it is short for one
user turn. Image paths are relative to the folder of IN (for stdin: the current one). A line without
an id has its number for one. Blank lines are skipped.

A table has a column prompt or messages, and images, id, tools, options if they are there; --map
says which columns have other names. --map user=question asks each question as a user's turn, through
the chat template; for a .txt file: --map user=prompt. All other columns are carried to OUT. A folder of images is
searched with its subfolders, in natural order.

OUT is JSON Lines, Parquet, Arrow or CSV, by its suffix. Each line is {"id", "ok": true, "text",
"finish", ...} or {"id", "ok": false, "error": {"type", "message", "hint", ...}}; a table has the
columns of IN and such columns. A line that cannot be read is a failed line; the others go on.

A line with a custom_id and a body is one of an OpenAI batch file, and is answered in that form, as
vllm run-batch does.

Options of a line win over flags, flags over --options, and that over the options of --config.
"""

EXAMPLES = """\b
Examples:
  pipegen generate in.jsonl -o out.jsonl --model embedded --stop "\\n\\n"
  pipegen generate photos/ --prompt "Describe it." -o out.jsonl \\
      --model Qwen/Qwen3-VL-4B-Instruct
  pipegen generate data.parquet -o out.parquet --map user=question \\
      --model Qwen/Qwen3-4B
  pipegen generate cat.png --prompt "What is in it?" --model embedded
  cat in.jsonl | pipegen generate - --model ./checkpoint --brief | jq .text
  pipegen generate in.jsonl -o out.jsonl --model Qwen/Qwen3-4B \\
      --backend vllm_server --base-url http://localhost:8000
  pipegen generate in.jsonl -o out.jsonl --config chat.yaml --agent qwen
  pipegen generate in.jsonl -o out.jsonl --model Qwen/Qwen3-4B --replicas 4
"""


class _GenerateCommand(InSections):
    """`pipegen generate`, with the flags that people use."""

    usual = frozenset(
        {
            *("source", "model", "config", "backend", "base_url", "out", "columns", "brief"),
            *("overwrite", "prompt", "image", "system", "replicas", "help", "help_all"),
            *(name for name, entry in OPTIONS.items() if entry.row.usual),
        }
    )
    more = MORE


def _show_version(asked: bool) -> None:
    if asked:
        from pipegen import __version__

        typer.echo(f"pipegen {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options of the whole program."""


@app.command(
    cls=_GenerateCommand,
    help=GENERATE,
    short_help="Answer every request of a file or folder.",
    epilog=EXAMPLES,
)
@with_flags
def generate(options: dict[str, object], settings: dict[str, object], flags: RunFlags) -> None:
    from pipegen.cli.generate import Files, run_generate
    from pipegen.cli.on_ray import on_ray
    from pipegen.cli.sources import asked_of, of_image
    from pipegen.cli.usage import load_of, shard_of

    flags = of_image(flags)
    loads = partial(load_of, flags, settings, flags.fallback, flags.fallback_when)
    files = Files(
        **vars(flags),
        asked=asked_of(flags, loads(), options),
        part=None if flags.shard is None else shard_of(flags.shard),
        on_ray=on_ray(flags.ray, flags.replicas, flags.gpus_per_replica, loads, flags.plugin or ()),
    )
    raise typer.Exit(run_generate(files))


@app.command(short_help="Write what a job has finished, at any time.")
def export(
    job: Annotated[
        Path,
        typer.Argument(
            metavar="JOB", help="The job's folder: OUT.job of `pipegen generate ... -o OUT`."
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option(
            "--out",
            "-o",
            metavar="OUT",
            help="A .jsonl, .parquet, .arrow, .csv or .tsv file, or - for stdout (the default).",
        ),
    ] = None,
    moved: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="IN",
            help="Where the job's input file or folder is now, if it was moved.",
        ),
    ] = None,
) -> None:
    """Write what a job of `pipegen generate` has finished, in the order of its input, and say how
    many rows are missing.

    No engine is loaded, and the job may still run. Exit code: 0 when no row is missing, else 1.
    """
    from pipegen.cli.export_command import run_export

    raise typer.Exit(run_export(job, out, moved))


@app.command(short_help="See it work, in the terminal and as an HTML page.")
def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE|DIR", help="Where the page goes.")
    ] = Path("pipegen-demo.html"),
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """See it work: the embedded model on a handful of images and prompts, in the terminal and as an
    HTML page.

    One image is broken and one prompt is hostile, on purpose. Exit code: 0 when everything came out
    as it should, else 1.
    """
    from pipegen.cli.demo import run_demo

    raise typer.Exit(run_demo(out, show=show))


@app.command(short_help="What is installed, and what each engine honours.")
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Also tell what engines make of this model: its dtype and its length.",
        ),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="hf|vllm",
            help=(
                "With --model: hf loads the model and compares its first steps with transformers'"
                " plain forward; vllm compares vLLM with transformers beyond each window and scaling"
                " of positions, on a small model."
            ),
        ),
    ] = None,
) -> None:
    """What is installed, which engines can run here, what each honours, and what to install for the
    rest.

    Exit code: 0 when an engine can run here, else 1; also 1 when the engine of --engine gives
    another text than transformers.
    """
    from pipegen.cli.doctor import run_doctor

    raise typer.Exit(run_doctor(model, engine, as_json=as_json))


CHAT = """Ask the models of a chat file at the same time, and see their answers side by side, or one
model with --model. A chat file is YAML or JSON:

\b
    agents:
      - id: here
        backend: {type: hf, model: embedded, max_tokens: 64}
      - id: server
        system_message: Be brief.
        backend:
          type: vllm                          # sglang, openai, vllm_server, ...
          model: Qwen/Qwen3-4B
          base_url: "http://localhost:8000/v1"
          api_key: ${MY_KEY}                  # else that of VLLM_API_KEY
          enable_thinking: true

Without a PROMPT, a session: each line (from the terminal, or from stdin) is a prompt, and each
model remembers the conversation.

--json writes one line for each model: {"agent", "model", "ok", "text", "reasoning", "finish",
"tokens_per_second", ...}. --dry-run writes each wire request, {"agent", "method", "url", "body"},
and sends nothing.

Exit code: 0 all answered, 1 some failed or ran out of tokens while thinking, 2 bad usage, 130
interrupted (answers that were whole are shown).
"""

CHAT_EXAMPLES = """\b
Examples:
  pipegen chat --model Qwen/Qwen3-4B "What is machine learning?"
  pipegen chat --model Qwen/Qwen3-4B --backend vllm --base-url http://localhost:8000
  pipegen chat --config chat.yaml "What is machine learning?" --dry-run
  pipegen chat --config chat.yaml "What is machine learning?"
  pipegen chat --config chat.yaml
  pipegen generate in.jsonl -o out.jsonl --config chat.yaml --agent server
"""


@app.command(help=CHAT, short_help="Ask several models, side by side.", epilog=CHAT_EXAMPLES)
def chat(
    prompt: Annotated[str | None, typer.Argument(metavar="[PROMPT]", help="What to ask.")] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="The chat file, .yaml or .json."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="A local folder, a hub name, or: embedded; in place of --config."
        ),
    ] = None,
    backend: Annotated[str | None, typer.Option(help="The engine of --model. Default: hf.")] = None,
    base_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The server that has --model."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system message of --model.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for each model.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")
    ] = False,
) -> None:
    from pipegen.cli.chat_command import chat_of, run_chat

    asked = chat_of(config, model, backend=backend, base_url=base_url, system=system)
    flag = "--model" if config is None else "--config"
    raise typer.Exit(run_chat(asked, prompt, as_json=as_json, dry_run=dry_run, flag=flag))


@app.command(short_help="The JSON Schema of chat files.")
def schema(
    lines: Annotated[bool, typer.Option("--lines", help="Of lines of results instead.")] = False,
) -> None:
    """The JSON Schema of chat files, for editors."""
    import json

    from pipegen.config import lines_schema, schema as chat_schema

    typer.echo(json.dumps((lines_schema if lines else chat_schema)(), ensure_ascii=False, indent=1))


@app.command(
    "lm-eval",
    short_help="lm-eval's own command, on any engine of pipegen.",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    },
    add_help_option=False,
)
def lm_eval(context: typer.Context) -> None:
    """lm-eval's own command (`run`, `ls`, `validate`) with its own arguments; a run takes pipegen
    for its model unless it says another.

    \b pipegen lm-eval --model_args pretrained=Qwen/Qwen3-4B --tasks gsm8k pipegen lm-eval
    --model_args pretrained=Qwen/Qwen3-4B,backend=vllm_server,base_url=http://localhost:8000 --tasks
    gsm8k
    """
    from pipegen.cli.lm_eval_command import run_lm_eval

    run_lm_eval(context.args)


add_commands(app)
app.registered_commands.sort(
    key=lambda command: ORDER.index(command.name or getattr(command.callback, "__name__", ""))
)
