"""The commands before and after a run: `pipegen estimate`, `pipegen view`, `pipegen diff` and
`pipegen verify`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pipegen.cli.flags import InSections, with_flags
from pipegen.cli.run_flags import AskedFlags, InputFlags, file_flag, model_flag, server_flag

ESTIMATE = """Count what a run of IN would take: no weights are loaded, and nothing is generated.

It says the exact tokens of the prompts, images included; the longest prompt; requests that do not
fit the model, by their ids; the share of the prompt tokens that a prefix cache saves; and the most
tokens that may be generated (max_new_tokens of each, times its samples). With --price, the most
that it costs; with --speed, the longest that it takes. IN and all other flags are those of pipegen
generate: --help-all shows them.

Exit code: 0 every request has a prompt that fits, 1 some would fail, 2 bad usage.
"""

ESTIMATE_EXAMPLES = """\b
Examples:
  pipegen estimate requests.jsonl --model Qwen/Qwen3-4B
  pipegen estimate data.parquet --map user=question --model ./checkpoint \\
      --max-new-tokens 256 --price 0.15,0.60 --speed 2400
  pipegen estimate photos/ --prompt "Describe it." --json \\
      --model Qwen/Qwen3-VL-4B-Instruct
"""


class _EstimateCommand(InSections):
    """`pipegen estimate`, with its own flags."""

    usual = frozenset({"source", "model", "price", "speed", "as_json", "help", "help_all"})


@with_flags
def estimate(
    options: dict[str, object],
    settings: dict[str, object],
    flags: AskedFlags,
    price: Annotated[
        str | None,
        file_flag(metavar="IN,OUT", help="What a million tokens cost, prompt and generated."),
    ] = None,
    speed: Annotated[
        float | None,
        file_flag(
            metavar="N",
            help="Tokens that are generated in a second, as a run's summary says.",
        ),
    ] = None,
    as_json: Annotated[bool, file_flag("--json", help="As JSON.")] = False,
) -> None:
    from pipegen.cli.estimate_command import price_of, run_estimate
    from pipegen.cli.sources import asked_of, of_image
    from pipegen.cli.usage import load_of

    flags = of_image(flags)
    request_settings = asked_of(flags, load_of(flags, settings), options)
    raise typer.Exit(
        run_estimate(flags.source, request_settings, price_of(price), speed, as_json=as_json)
    )


VIEW = """Make a page of RESULTS to look at: one HTML file that holds everything, or a folder of
pages beyond 2,000 results.

It shows prompts, images with the boxes of the answer, texts and raw texts, how each ended, and
errors by type with their counts. The page filters by error, ending, text and id. With OTHER,
results of another run are shown beside them, paired by id, and the words that differ are marked.

RESULTS is what pipegen generate writes: .jsonl or .parquet. Prompts and images come from the rows,
else from the input of the run, which OUT.job names; --input names it where there is no such folder.
No script but the page's own can run in it, and it loads nothing.

Exit code: 0, or 2 for bad usage.
"""

VIEW_EXAMPLES = """\b
Examples:
  pipegen view results.jsonl
  pipegen view hf.parquet vllm.parquet -o compared.html
  pipegen view results.jsonl --input requests.jsonl --boxes pixels --open
"""


@dataclass(frozen=True, kw_only=True)
class ViewFlags:
    """The flags of `pipegen view`."""

    results: Annotated[
        Path, typer.Argument(metavar="RESULTS", help="Results, as generate writes them.")
    ]
    other: Annotated[
        Path | None,
        typer.Argument(metavar="OTHER", help="Results of the same requests, from another run."),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE|DIR",
            help="Where the page goes. Default: RESULTS with .html, or with .pages for a folder.",
        ),
    ] = None
    asked: Annotated[
        Path | None,
        typer.Option("--input", metavar="IN", help="The input of the run, for prompts and images."),
    ] = None
    boxes: Annotated[
        str,
        typer.Option(
            metavar="auto|thousandths|pixels|fractions",
            help="What the numbers of bbox_2d in answers are.",
        ),
    ] = "auto"
    image_root: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Image paths start here, and nothing outside is read.",
        ),
    ] = None
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False


@with_flags
def view(flags: ViewFlags) -> None:
    from pipegen.cli.view import run_view

    raise typer.Exit(run_view(flags))


DIFF = """For each request the first stage at which its results in A and B differ: prompt ids, grid,
options, ids, raw text, text, reasoning, calls, finish. Earlier rounds come first, samples last.

What differs is shown with the text around it. Requests are paired by their ids. A last line on
stderr counts equal ones, and those that differ at each stage. --ignore options compares the texts
of runs with different options.

Exit code: 0 when all are equal, 1 when some differ, 2 bad usage.
"""


def diff(
    first: Annotated[
        Path,
        typer.Argument(metavar="A", help="Results, as generate writes them: .jsonl or .parquet."),
    ],
    second: Annotated[
        Path,
        typer.Argument(
            metavar="B", help="Results of the same requests, from another engine or version."
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object for each difference.")
    ] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STAGE",
            help="A stage that is not compared, such as options; may be given several times.",
        ),
    ] = None,
) -> None:
    from pipegen.cli.diff_command import run_diff

    raise typer.Exit(run_diff(first, second, as_json=as_json, ignore=tuple(ignore or ())))


VERIFY = """Ask whether the server at URL serves MODEL right, or whether MODEL made the results in a
file.

Requests go to the server greedily: by chat, where the server renders and fills in its own defaults,
and by token ids, where it does neither (vLLM, SGLang). A reference scores the answers: MODEL on the
Hugging Face engine, in this process, in float32. Answers that are right are then asked back: half
as long, with stop strings, as streams, and drawn with seeds. A fault is named, with its evidence:

\b
    template     the server renders the messages to another prompt
    context      it cuts long prompts, or computes otherwise beyond a length
    images       it prepares images otherwise
    order        it gives requests the answers of others
    length       answers are cut or too long; finish or counts are wrong
    text         the text is not that of the tokens
    end tokens   it ends answers elsewhere, or runs on
    penalty      it takes a penalty of repeated tokens where none is asked
    sampling     it draws tokens otherwise than the request says
    chat         with the same prompt it answers otherwise by chat
    logprobs     its log probabilities are not those of its tokens
    precision    it computes in a lower precision than --precision
    weights      it has other weights
    unknown      it differs, and the cause is not known

IN is a file of requests, as pipegen generate reads them, without options of sampling; without IN a
small set is asked. A plain prompt is asked by ids alone. The key of the server is read from
VLLM_API_KEY, SGLANG_API_KEY or OPENAI_API_KEY.

In the place of URL a file of results (.jsonl, .parquet) is read through the reference: for each
row, right, template, sampling, weights, unknown or not judged. IN is then the file of its requests,
by which its prompts are judged.

Exit code: 0 right, 1 a fault, a failed request, or nothing judged, 2 bad usage.
"""

VERIFY_EXAMPLES = """\b
Examples:
  pipegen verify http://localhost:8000 --model Qwen/Qwen3-4B
  pipegen verify http://localhost:8000 requests.jsonl --model ./checkpoint \\
      --device cuda:0 --dtype bfloat16 --json
  pipegen verify results.jsonl requests.jsonl --model Qwen/Qwen3-4B
"""


@dataclass(frozen=True, kw_only=True)
class VerifyFlags(InputFlags):
    """The flags of `pipegen verify`."""

    url: Annotated[
        str, typer.Argument(metavar="URL", help="The server's address, or a file of results.")
    ]
    source: Annotated[
        str | None, typer.Argument(metavar="IN", help="Requests, as generate takes them.")
    ] = None
    model: Annotated[
        str,
        model_flag(
            "--model", "-m", help="What it should serve: a local folder, a hub name, or: embedded."
        ),
    ]
    dtype: Annotated[str, model_flag(help="What the reference computes in.")] = "float32"
    device: Annotated[
        str | None,
        model_flag(help="Where the reference runs, such as cuda:0."),
    ] = None
    revision: Annotated[str | None, model_flag(help="The hub's revision.")] = None
    trust_remote_code: Annotated[
        bool,
        model_flag("--trust-remote-code", help="Run code that comes with the model."),
    ] = False
    adapter: Annotated[
        str | None,
        model_flag(help="The LoRA adapter of all rows of a file: folder or hub name."),
    ] = None
    adapters: Annotated[
        str | None,
        model_flag(
            metavar="JSON",
            help="The LoRA adapters that rows of a file name, as in generate.",
        ),
    ] = None
    precision: Annotated[
        str | None,
        server_flag(
            metavar="float32|float16|bfloat16",
            help="What the server should compute in. Default: the checkpoint's dtype.",
        ),
    ] = None
    dialect: Annotated[
        str | None,
        server_flag(
            metavar="vllm|sglang|plain",
            help="Which server it is. Default: as it says.",
        ),
    ] = None
    chat_only: Annotated[bool, server_flag("--chat-only", help="Do not ask by token ids.")] = False
    deterministic: Annotated[
        bool,
        server_flag(
            "--deterministic",
            help="Ask each request alone and among the others, too, and count other answers.",
        ),
    ] = False
    served_model_name: Annotated[
        str | None,
        server_flag(help="The name that the server has for the model."),
    ] = None
    timeout: Annotated[
        float,
        server_flag(help="Seconds for one request in all."),
    ] = 600.0
    max_new_tokens: Annotated[
        int,
        file_flag(min=1, help="The most tokens of an answer."),
    ] = 32
    rows: Annotated[
        int | None,
        file_flag(min=1, help="Ask so many requests at most."),
    ] = None
    as_json: Annotated[bool, file_flag("--json", help="As JSON.")] = False
    summary: Annotated[
        Path | None,
        file_flag(metavar="FILE", help="Write the verdict to FILE, as JSON."),
    ] = None
    quiet: Annotated[bool, file_flag("--quiet", "-q", help="No progress.")] = False


@with_flags
def verify(flags: VerifyFlags) -> None:
    from pipegen.cli.verify_command import run_verify

    raise typer.Exit(run_verify(flags))


def add_commands(app: typer.Typer) -> None:
    """Add these commands to the program."""
    app.command(
        cls=_EstimateCommand,
        help=ESTIMATE,
        short_help="Count what a run would take, before it.",
        epilog=ESTIMATE_EXAMPLES,
    )(estimate)
    app.command(help=VIEW, short_help="A page of results, to look at.", epilog=VIEW_EXAMPLES)(view)
    app.command(
        cls=InSections,
        help=VERIFY,
        short_help="Is a server, or a file, right for this model?",
        epilog=VERIFY_EXAMPLES,
    )(verify)
    app.command(help=DIFF, short_help="Where two files of results differ.")(diff)
