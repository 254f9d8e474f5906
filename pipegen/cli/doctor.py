"""`pipegen doctor`: what is installed, which engines can run here, what each honours, and what to
install for the rest.
"""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

from pipegen.cli.outputs import Rows, lines_of
from pipegen.cli.usage import refuse
from pipegen.core.distribution import DISTRIBUTION, install_command, install_hint, need, version
from pipegen.core.errors import CallFailed, TemplateFailed
from pipegen.core.slots import is_ok
from pipegen.engines.capabilities import ENGINES, FEATURES
from pipegen.engines.versions import bounds, is_newer, minor, required_by
from pipegen.records import strict_json
from pipegen.records.engine_list import ENGINE_LIST, IN_PROCESS, shown
from pipegen.records.options import option_names
from pipegen.template.template import call_template
from pipegen.template.untrusted import Conversation

if TYPE_CHECKING:
    from pipegen.backends.checkpoint.checkpoint import Checkpoint


PACKAGES = (
    *("torch", "transformers", "accelerate", "peft", "vllm", "aiohttp", "orjson"),
    *("pillow", "numpy", "tokenizers", "jinja2", "safetensors", "huggingface-hub"),
    *("pyarrow", "ray"),
)
"""Whose versions are shown, in this order."""


def examine(model: str | None = None, engine: str | None = None) -> dict[str, Any]:
    """All that the doctor sees, as plain data. Imports torch, where it is installed, to ask for its
    devices, and lets the embedded model take its first steps on `hf`.

    With a model, also what engines make of it; with an engine, whether that gives the text of
    transformers (see `_first_steps` and `_same_text`). Raises `FileNotFoundError`, `OSError`, `ValueError`,
    `MissingExtra`, `CallFailed` or `TemplateFailed` where the model cannot be read.
    """
    missing = {name: _missing(row.extra) for name, row in ENGINE_LIST.items()}
    untested = {name: _untested(row.extra) for name, row in ENGINE_LIST.items()}
    extras = {
        name: [*_missing(name), *_untested(name)] for name in ("hf", "peft", "online", "structured")
    }
    steps = None if missing["hf"] else _first_steps("embedded")
    right = steps is None or steps["same"] is not False
    return {
        "pipegen": version(),
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "packages": {name: _version(name) for name in PACKAGES},
        "versions": _versions(),
        "devices": _devices(),
        "engines": {
            name: {
                "runs": not absent and not untested[name] and (name != "hf" or right),
                "missing": absent,
                "untested": untested[name],
                "install": (
                    install_command(ENGINE_LIST[name].extra) if absent or untested[name] else None
                ),
            }
            for name, absent in missing.items()
        },
        "first_steps": steps,
        "extras": {name: absent for name, absent in extras.items() if absent},
        "features": {
            name: {
                "what": words,
                "engines": [engine for engine in ENGINES if name in ENGINES[engine]],
            }
            for name, words in FEATURES.items()
        },
        "options": {
            name: [engine for engine in ENGINES if name in ENGINES[engine]]
            for name in option_names()
        },
    } | (
        {}
        if model is None
        else {
            "model": _model(model)
            | (
                {}
                if engine is None
                else {"same_text": (_first_steps if engine == "hf" else _same_text)(model)}
            )
        }
    )


def _model(name: str) -> dict[str, Any]:
    """What every engine in this process makes of a checkpoint where nothing else is asked; all its
    files are read, of the weights the headers.
    """
    from pipegen.backends.checkpoint.checkpoint import Checkpoint
    from pipegen.engines.settings import ModelLoadConfig

    checkpoint = Checkpoint(ModelLoadConfig(model=name))
    positions = checkpoint.positions
    checkpoint.require_weights()
    _render_one(checkpoint)
    for read in (lambda: checkpoint.eos_token_ids, lambda: checkpoint.image_placeholder):
        read()
    return {
        "name": name,
        "type": checkpoint.config.model_type,
        "dtype": checkpoint.dtype,
        "context_length": positions.context_length,
        "long_rope_after": positions.long_after,
        "images": checkpoint.takes_images and not checkpoint.no_processor_because,
        "problem": (checkpoint.takes_images and checkpoint.no_processor_because) or None,
    }


def _first_steps(name: str) -> dict[str, object]:
    """Whether the rows of a model on `hf` have the logits of transformers' plain forward at their
    first steps; its weights are loaded.
    """
    report: dict[str, object] = {"engine": "hf", "lengths": {}, "not_judged": []}
    try:
        from pipegen.backends.checkpoint.verdicts import CannotCheck
        from pipegen.backends.hf.first_steps import WAYS
        from pipegen.backends.hf.hf_engine import HFEngine
        from pipegen.engines.settings import ModelLoadConfig
    except ImportError as absent:
        return report | {"same": None, "because": str(absent)}
    engine = HFEngine(ModelLoadConfig(model=name))
    try:
        way = engine.check()
    except CannotCheck as unknown:
        return report | {"same": None, "because": str(unknown)}
    except CallFailed as failed:
        return report | {"same": False, "because": str(failed.error)}
    finally:
        engine.close()
    return report | {"same": True, "because": None if way == WAYS[0] else f"{way.words}: {way.why}"}


def _same_text(name: str) -> dict[str, object]:
    """Whether vLLM and transformers give the same text beyond each length that the model's
    configuration names; vLLM starts once, in this process.
    """
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    need("vllm", "vllm", "the vLLM engine")
    from pipegen.backends.checkpoint.checkpoint import Checkpoint
    from pipegen.backends.checkpoint.engine_parity import compared, in_words
    from pipegen.backends.checkpoint.positions import boundaries
    from pipegen.backends.checkpoint.verdicts import CannotCheck
    from pipegen.backends.vllm.self_check import check_lengths
    from pipegen.engines.settings import ModelLoadConfig

    checkpoint = Checkpoint(ModelLoadConfig(model=name, backend="vllm"))
    tried = compared(checkpoint.config)
    report: dict[str, object] = {
        "engine": "vllm",
        "lengths": {boundary.name: boundary.tokens for boundary in tried},
        "not_judged": [
            f"beyond {boundary.tokens:,} tokens ({boundary.name}): positions are scaled by the"
            " length of the row there, which transformers alone does; use hf for such rows"
            for boundary in boundaries(checkpoint.config)
            if boundary not in tried
        ],
    }
    try:
        differs = check_lengths(checkpoint)
    except CannotCheck as unknown:
        return report | {"same": None, "because": str(unknown)}
    because = None if differs is None else in_words(differs, "vllm")
    return report | {"same": differs is None, "because": because}


def _render_one(checkpoint: Checkpoint) -> None:
    """Raise `TemplateFailed` where the model's chat template is broken, whatever the messages."""
    if checkpoint.renderer.template is None:
        return
    hello = Conversation([{"role": "user", "content": "Hi"}], [], {"add_generation_prompt": True})
    error = call_template(checkpoint.renderer, None, {}, hello, probes=True)
    if not is_ok(error) and error.failure().hint != TemplateFailed.default_hint:
        raise error.failure()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _versions() -> dict[str, dict[str, Any]]:
    """Each bounded package of the engines: what is installed, what pipegen takes, up to which minor
    version its tests were run, and whether the installed one is fine.
    """
    rows: dict[str, dict[str, object]] = {}
    for name, known in bounds().items():
        version = _version(name)
        verdict = None
        if version is not None:
            verdict = (
                "newer than tested"
                if is_newer(name, version)
                else "older than the lowest"
                if not _takes(known.takes, version)
                else "taken, not tested"
                if minor(version) > known.tested
                else "fine"
            )
        rows[name] = {
            "installed": version,
            "takes": known.takes,
            "tested_up_to": ".".join(map(str, known.tested)),
            "verdict": verdict,
        }
    return rows


def _missing(extra: str) -> list[str]:
    """What an extra requires and is not there, or in a version that is too old for it."""
    required = required_by(extra)
    problems = [] if required else ["pipegen itself is not installed as a package"]
    for name, versions in required.items():
        if name.lower() == DISTRIBUTION:
            continue
        version = _version(name)
        if version is None:
            problems.append(f"{name} is not installed")
        elif not _takes(versions, version) and not is_newer(name, version):
            problems.append(f"{name} {version} is installed; it takes {versions}")
    return problems


def _untested(extra: str) -> list[str]:
    """What an extra requires and is there in a version newer than pipegen takes."""
    known = bounds()
    installed = {name: _version(name) for name in required_by(extra)}
    return [
        f"{name} {version} is newer than pipegen's tests, which were run up to"
        f" {'.'.join(map(str, known[name].tested))}; it takes {known[name].takes}"
        for name, version in installed.items()
        if version is not None and is_newer(name, version)
    ]


def _takes(versions: str, version: str) -> bool:
    try:
        # comes with transformers; without it, being there has to be enough
        from packaging.specifiers import SpecifierSet
    except ModuleNotFoundError:
        return True
    return SpecifierSet(versions).contains(version, prereleases=True)


def _devices() -> list[str]:
    """Where torch can compute, best first; nothing where it is not installed."""
    if _version("torch") is None:
        return []
    import torch

    devices = (
        [
            f"cuda:{index} ({torch.cuda.get_device_name(index)})"
            for index in range(torch.cuda.device_count())
        ]
        if torch.cuda.is_available()
        else []
    )
    if torch.backends.mps.is_available():
        devices.append("mps")
    return [*devices, f"cpu ({torch.get_num_threads()} threads)"]


def run_doctor(model: str | None, engine: str | None = None, *, as_json: bool) -> int:
    """Print what `examine` sees. The exit code: 0 when an engine can run here, at versions that
    pipegen takes (and the model can be read, and engines give the text of transformers), else 1.
    """
    if engine not in {None, *IN_PROCESS}:
        refuse(f"takes {' or '.join(sorted(IN_PROCESS))}, not {engine!r}", "--engine")
    if engine is not None and model is None:
        refuse("goes with --model", "--engine")
    try:
        report = examine(model, engine)
    except (ImportError, OSError, ValueError, CallFailed, TemplateFailed) as error:
        # of the model alone
        reason = error.error if isinstance(error, CallFailed) else error
        print(f"pipegen doctor: {reason}", file=sys.stderr)
        return 1
    if as_json:
        print(strict_json.dump(report))
    else:
        _show(report)
    texts = (report["first_steps"], report.get("model", {}).get("same_text"))
    differs = any(text is not None and text["same"] is False for text in texts)
    runs = any(engine_facts["runs"] for engine_facts in report["engines"].values())
    return 0 if runs and not differs else 1


def _of_text(report: dict[str, Any]) -> str:
    """Whether an engine gives the text of transformers, for a reader."""
    if report["engine"] == "hf" and report["same"]:
        slower = "" if report["because"] is None else f" ({report['because']})"
        return f"hf: its first steps have the logits of transformers' plain forward{slower}"
    if report["same"] is None:
        return f"{report['engine']}: not checked against transformers: {report['because']}"
    beyond = ", ".join(f"{tokens} tokens ({name})" for name, tokens in report["lengths"].items())
    where = f", also beyond {beyond}" if beyond else ""
    return (
        f"{report['engine']}: the log probabilities of transformers on a small model of its"
        f" kind{where}"
        if report["same"]
        else str(report["because"])
    )


_ROWS: Rows = (
    (
        "",
        (
            "\n[bold]Installed[/]      {installed}\n[bold]Not installed[/]  {absent}\n"
            "[bold]Devices[/]        {devices}\n"
        ),
    ),
    (
        "versions",
        (
            "{name} {installed}  [{colour}]{verdict}[/]: tested up to {tested_up_to}, and pipegen"
            " takes {takes}"
        ),
    ),
    ("", ""),
    ("engines", "[bold]{shown}[/] ({name})  {verdict}"),
    ("", "embedded  comes with pipegen, {needs} Hugging Face transformers"),
    ("extras", "To get {extra}: [bold]{install}[/]  ({problems})"),
    ("model", "[bold]{model}[/]  {facts}"),
    ("text", "{text}"),
    ("not_judged", "not judged: {reason}"),
)


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    def verdict_on(name: str) -> str:
        engine = report["engines"][name]
        if engine["runs"]:
            return "[green]can run here[/]"
        if engine["missing"]:
            return f"[red]cannot run here[/]: {escape('; '.join(engine['missing']))}"
        if name == "hf" and report["first_steps"]["same"] is False:
            return f"[red]cannot run here[/]: {escape(report['first_steps']['because'])}"
        return f"[yellow]not tested here[/]: {escape('; '.join(engine['untested']))}"

    model, packages = report.get("model", {}), report["packages"]
    same_text = model.get("same_text")
    values = {
        "installed": ", ".join(f"{name} {packages[name]}" for name in packages if packages[name]),
        "absent": (
            ", ".join(name for name in packages if not packages[name]) or "nothing is missing"
        ),
        "devices": escape(", ".join(report["devices"])) or "none: torch is not installed",
        "versions": [
            {"name": name, "colour": "green" if row["verdict"] == "fine" else "yellow", **row}
            for name, row in report["versions"].items()
            if row["verdict"] is not None
        ],
        "engines": [
            {"name": name, "shown": shown(name), "verdict": verdict_on(name)}
            for name in report["engines"]
        ],
        "needs": "on" if report["engines"]["hf"]["runs"] else "and needs",
        "extras": [
            {"extra": name, "install": escape(install_hint(name)), "problems": "; ".join(problems)}
            for name, problems in report["extras"].items()
        ],
        "model": escape(model.get("name", "")),
        "facts": ", ".join(
            f"{name} {value}"
            for name, value in model.items()
            if name not in ("name", "same_text") and value is not None
        ),
        "text": escape(_of_text(same_text)) if same_text else None,
        "not_judged": [
            {"reason": escape(words)} for words in (same_text or {"not_judged": ()})["not_judged"]
        ],
    }
    console = Console(file=sys.stdout, highlight=False)
    console.print(
        f"[bold]pipegen {report['pipegen']}[/]  ·  Python {report['python']}"
        f"  ·  {report['platform']}"
    )
    console.print("\n".join(lines_of(values, _ROWS)), soft_wrap=True)
    table = Table(
        title="\nWhat each engine honours",
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
    )
    table.add_column("")
    for engine in ENGINES:
        table.add_column(shown(engine), justify="center")
    rows = {
        f"{name} [dim]({feature['what']})[/]": feature["engines"]
        for name, feature in report["features"].items()
    } | report["options"]
    for name, engines in rows.items():
        table.add_row(name, *("yes" if engine in engines else "-" for engine in ENGINES))
    # One row for one line, however narrow the terminal: it is what people search with grep.
    Console(file=sys.stdout, highlight=False, width=max(console.width, 180)).print(table)
