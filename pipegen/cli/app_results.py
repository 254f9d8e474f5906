"""The commands before and after a run: `pipegen estimate`, `pipegen view` and `pipegen diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pipegen.cli.flags import InSections, with_flags
from pipegen.config.keys import TYPES

__all__ = ["FILES", "FOLDER", "MANY", "MODEL", "add_commands"]

FILES, MODEL, FOLDER = "Input and output", "Model", "A folder of images, or one question"
MANY = "Many GPUs and machines"

ESTIMATE = """Count what a run of IN would take: no weights are loaded, and nothing is generated.

It says the exact tokens of the prompts, images included; the longest prompt; requests that do not fit the model, by their ids; the share of the prompt
tokens that a prefix cache saves; and the most tokens that may be generated (max_new_tokens of each, times its samples). With --price, the most that it
costs; with --speed, the longest that it takes. IN and all other flags are those of pipegen generate.

Exit code: 0 every request has a prompt that fits, 1 some would fail, 2 bad usage.
"""

ESTIMATE_EXAMPLES = """\b
Examples:
  pipegen estimate requests.jsonl --model Qwen/Qwen3-4B
  pipegen estimate data.parquet --map prompt=question --model ./checkpoint --max-new-tokens 256 --price 0.15,0.60 --speed 2400
  pipegen estimate photos/ --prompt "Describe it." --model Qwen/Qwen3-VL-4B-Instruct --json
"""


@with_flags
def estimate(
    options: dict[str, Any],
    settings: dict[str, Any],
    source: Annotated[str | None, typer.Argument(metavar="IN", help="What pipegen generate takes.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="A local folder, a hub name, or: embedded.", rich_help_panel=MODEL)] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="A chat file, in place of --model.", rich_help_panel=MODEL)] = None,
    agent: Annotated[str | None, typer.Option("--agent", metavar="ID", help="Which of the chat file's models.", rich_help_panel=MODEL)] = None,
    backend: Annotated[str, typer.Option("--backend", help=f"The engine, as in chat files: {', '.join(TYPES)}.", rich_help_panel=MODEL)] = "hf",
    plugin: Annotated[list[str] | None, typer.Option("--plugin", metavar="NAME[:ARG=VALUE,...]", help="Attach a plugin.", rich_help_panel=MODEL)] = None,
    price: Annotated[
        str | None, typer.Option("--price", metavar="IN,OUT", help="What a million tokens cost, prompt and generated.", rich_help_panel=FILES)
    ] = None,
    speed: Annotated[
        float | None, typer.Option("--speed", metavar="N", help="Tokens that are generated in a second, as a run's summary says.", rich_help_panel=FILES)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.", rich_help_panel=FILES)] = False,
    columns: Annotated[
        list[str] | None, typer.Option("--map", metavar="FIELD=COLUMN,...", help="Columns that have other names.", rich_help_panel=FILES)
    ] = None,
    options_file: Annotated[Path | None, typer.Option("--options", metavar="FILE", help="Generation options as .json or .yaml.", rich_help_panel=FILES)] = None,
    image_root: Annotated[str | None, typer.Option("--image-root", metavar="DIR", help="Image paths start here.", rich_help_panel=FILES)] = None,
    allow_http: Annotated[bool, typer.Option("--allow-http", help="Fetch images from http and https URLs.", rich_help_panel=FILES)] = False,
    allow_host: Annotated[list[str] | None, typer.Option("--allow-host", metavar="HOST", help="Fetch from this host too.", rich_help_panel=FILES)] = None,
    allow_templates: Annotated[bool, typer.Option("--allow-templates", help="Let requests bring chat templates of their own.", rich_help_panel=FILES)] = False,
    limit: Annotated[list[str] | None, typer.Option("--limit", metavar="NAME=N", help="Raise what a request may ask for.", rich_help_panel=FILES)] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="What to ask of each image; without IN, the one question.", rich_help_panel=FOLDER)] = None,
    image: Annotated[list[str] | None, typer.Option("--image", help="An image of the one question.", rich_help_panel=FOLDER)] = None,
    system: Annotated[str | None, typer.Option("--system", help="The system prompt that goes before.", rich_help_panel=FOLDER)] = None,
) -> None:
    from pipegen.cli.estimate import price_of, run_estimate
    from pipegen.cli.plugins import plugins_of
    from pipegen.cli.sources import Question, columns_of
    from pipegen.cli.usage import images_of, load_of, policy_of, run_options

    policy = policy_of(allow_templates, limit or ())
    load = load_of(config, agent, model, backend, None, (), settings)
    asked = Question(prompt, system, tuple(image or ()), overwrite=True)
    images, chosen = images_of(image_root, allow_http, allow_host or ()), run_options(options, options_file, load)
    plugins, prices = plugins_of(plugin or ()), price_of(price)
    code = run_estimate(source, asked, columns_of(columns or ()), load, chosen, images, policy, plugins=plugins, price=prices, speed=speed, as_json=as_json)
    raise typer.Exit(code)


VIEW = """Make a page of RESULTS to look at: one HTML file that holds everything, or a folder of pages beyond 2,000 results.

It shows prompts, images with the boxes of the answer, texts and raw texts, how each ended, and errors by type with their counts. The page filters by error,
ending, text and id. With OTHER, results of another run stand beside them, paired by id, and the words that differ are marked.

RESULTS is what pipegen generate writes: .jsonl or .parquet. Prompts and images come from the rows, else from the input of the run, which OUT.job names;
--input names it where there is no such folder. No script but the page's own can run in it, and it loads nothing.

Exit code: 0, or 2 for bad usage.
"""

VIEW_EXAMPLES = """\b
Examples:
  pipegen view results.jsonl
  pipegen view hf.parquet vllm.parquet -o compared.html
  pipegen view results.jsonl --input requests.jsonl --boxes pixels --open
"""


def view(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="Results, as generate writes them.")],
    other: Annotated[Path | None, typer.Argument(metavar="OTHER", help="Results of the same requests, from another run.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE|DIR", help="Where the page goes. Default: RESULTS with .html, or with .pages for a folder.")
    ] = None,
    asked: Annotated[Path | None, typer.Option("--input", metavar="IN", help="The input of the run, for prompts and images.")] = None,
    boxes: Annotated[str, typer.Option("--boxes", metavar="auto|thousandths|pixels|fractions", help="What the numbers of bbox_2d in answers are.")] = "auto",
    image_root: Annotated[str | None, typer.Option("--image-root", metavar="DIR", help="Image paths start here, and nothing outside is read.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    from typing import get_args

    from pipegen.cli.usage import images_of, refuse
    from pipegen.cli.view import run_view
    from pipegen.report.boxes import Scale

    if boxes not in get_args(Scale):
        refuse(f"takes one of {', '.join(get_args(Scale))}, not {boxes!r}", "--boxes")
    scale: Any = boxes
    raise typer.Exit(run_view(results, other, out, asked, scale=scale, images=images_of(image_root, False, ()), show=show))


DIFF = """For each request the first stage at which its results in A and B differ: prompt ids, grid, options, ids, raw text, text, finish.

What differs is shown with what stands around it. Requests are paired by their ids. A last line on stderr counts equal ones, and those that differ at each
stage. --ignore options compares the texts of runs with different options.

Exit code: 0 when all are equal, 1 when some differ, 2 bad usage.
"""


def diff(
    first: Annotated[Path, typer.Argument(metavar="A", help="Results, as generate writes them: .jsonl or .parquet.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Results of the same requests, from another engine or version.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each difference.")] = False,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="STAGE", help="A stage that is not compared, such as options; may be given several times.")
    ] = None,
) -> None:
    from pipegen.cli.diff import run_diff

    raise typer.Exit(run_diff(first, second, as_json=as_json, ignore=tuple(ignore or ())))


def add_commands(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command(cls=InSections, help=ESTIMATE, short_help="Count what a run would take, before it.", epilog=ESTIMATE_EXAMPLES)(estimate)
    app.command(help=VIEW, short_help="A page of results, to look at.", epilog=VIEW_EXAMPLES)(view)
    app.command(help=DIFF, short_help="Where two files of results part.")(diff)
