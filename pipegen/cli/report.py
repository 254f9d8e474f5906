"""The demo's page: one HTML file with everything in it, no scripts, and every text escaped.

>>> boxes_of('{"objects":[{"shape":"circle","color":"red","bbox_2d":[0,0,500,1000]}]}')
(Box(label='red circle', left=0.0, top=0.0, width=50.0, height=100.0),)
>>> boxes_of("no JSON")
()
"""

from __future__ import annotations

import base64
import html
import mimetypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pipegen.cli import sample_images
from pipegen.cli.outputs import printable
from pipegen.core.distribution import version
from pipegen.core.slots import is_ok
from pipegen.records import strict_json
from pipegen.records.results import GenerationResult

if TYPE_CHECKING:
    from pipegen.cli.demo import Outcome

__all__ = ["Box", "boxes_of", "page"]


class Box(NamedTuple):
    """One object to draw: its label, and where it is, in percent of the image's sides."""

    label: str
    left: float
    top: float
    width: float
    height: float


def boxes_of(text: str) -> tuple[Box, ...]:
    """The boxes that an answer holds: `{"objects": [{"shape", "color", "bbox_2d": [x1, y1, x2, y2]}]}`, in thousandths. Anything else holds none."""
    try:
        value = strict_json.load(text)
    except strict_json.NotStrict:
        return ()
    objects = value.get("objects") if isinstance(value, dict) else None
    return tuple(box for one in objects if (box := _box(one)) is not None) if isinstance(objects, list) else ()


def _box(one: Any) -> Box | None:
    corners = one.get("bbox_2d") if isinstance(one, dict) else None
    if not (isinstance(corners, list) and len(corners) == 4 and all(type(corner) in (int, float) for corner in corners)):
        return None
    x1, y1, x2, y2 = (min(max(corner, 0), 1000) / 10 for corner in corners)
    label = " ".join(str(one[name]) for name in ("color", "shape") if isinstance(one.get(name), str))
    return Box(label, x1, y1, max(x2 - x1, 0), max(y2 - y1, 0))


def _text(text: str) -> str:
    """Somebody's text, as the page may hold it."""
    return html.escape(printable(text))


def page(outcomes: Sequence[Outcome], seconds: float) -> str:
    """The whole page."""
    results = [outcome.slot.unwrap() for outcome in outcomes if is_ok(outcome.slot)]
    facts = (
        f"{len(outcomes)} requests in one batch",
        f"{len(results)} answers, {len(outcomes) - len(results)} error",
        f"{sum(result.prompt_tokens for result in results)} prompt tokens",
        f"{sum(sample.completion_tokens for result in results for sample in result.samples or (result,))} generated",
        f"{seconds:.1f} s on this machine",
    )
    chips = "".join(f"<li>{_text(fact)}</li>" for fact in facts)
    cards = "\n".join(_card(outcome) for outcome in outcomes)
    return PAGE.format(style=STYLE, chips=chips, cards=cards, version=_text(version()))


def _card(outcome: Outcome) -> str:
    case, slot = outcome.case, outcome.slot
    result = slot.unwrap() if is_ok(slot) else None
    kind = "card" if result else "card failed"
    system = f'<p class="system"><b>system</b> {_text(case.system)}</p>' if case.system else ""
    answer = _answer(outcome, result) if result else _error(outcome)
    odd = "" if outcome.good else '<p class="odd">This did not come out as expected.</p>'
    return f"""<article class="{kind}">
<h2>{_text(case.title)}</h2><p class="note">{_text(case.note)}</p>
{_images(outcome, result)}{system}<p class="question">{_text(case.question)}</p>{odd}
{answer}
</article>"""


def _images(outcome: Outcome, result: GenerationResult | None) -> str:
    if not outcome.case.images:
        return ""
    drawn = "".join(
        f'<div class="box" style="left:{box.left:g}%;top:{box.top:g}%;width:{box.width:g}%;height:{box.height:g}%"><span>{_text(box.label)}</span></div>'
        for box in (boxes_of(result.text) if result and len(outcome.case.images) == 1 else ())
    )
    return '<div class="images">' + "".join(_image(name, drawn) for name in outcome.case.images) + "</div>\n"


def _image(name: str, drawn: str) -> str:
    if name == sample_images.BROKEN:
        return f'<figure class="missing"><div>&#x26A0;</div><figcaption>{_text(name)}: half of the file is missing</figcaption></figure>'
    data = base64.b64encode(sample_images.path(name).read_bytes()).decode()
    kind = mimetypes.guess_type(name)[0] or "image/png"
    image = f'<img alt="{_text(name)}" src="data:{kind};base64,{data}">'
    return f'<figure><div class="frame">{image}{drawn}</div><figcaption>{_text(name)}</figcaption></figure>'


def _answer(outcome: Outcome, result: GenerationResult) -> str:
    texts = "".join(f'<pre class="text">{_text(sample.text)}</pre>' for sample in result.samples or (result,))
    facts = [("finish", result.finish.value)] + ([("stop", repr(result.stop))] if result.stop is not None else [])
    facts += [("prompt tokens", str(result.prompt_tokens)), ("generated", str(result.completion_tokens)), ("thinking", str(result.thinking))]
    facts += [("grid", " x ".join(map(str, grid))) for grid in result.image_grid_thw if grid]
    rows = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts)
    opened = " open" if outcome.case.shows_prompt else ""
    return f"""{texts}
<dl>{rows}</dl>
<h3>raw_text</h3><pre class="raw">{_pieces(outcome.answer)}</pre>
<details{opened}><summary>The prompt, as the model gets it</summary><pre class="raw">{_pieces(outcome.prompt)}</pre></details>"""


def _pieces(pieces: Sequence[tuple[str, bool]]) -> str:
    return "".join(f'<span class="token">{_text(text)}</span>' if control else _text(text) for text, control in pieces)


def _error(outcome: Outcome) -> str:
    error = outcome.slot.failure()
    return f"""<div class="error"><b>{_text(type(error).__name__)}</b><p>{_text(error.message)}</p><p class="hint">{_text(error.hint)}</p></div>
<p class="note">The other requests of the batch were answered in the same call.</p>"""


STYLE = """
:root { color-scheme: light dark; --paper: #f6f5f2; --card: #fff; --ink: #1d2330; --soft: #667085; --line: #e4e2dc; --mark: #3b5bdb; --token: #e9edff;
  --bad: #c92a2a; --bad-soft: #fff0ee; --box: #e8007d; }
@media (prefers-color-scheme: dark) { :root { --paper: #14161b; --card: #1d2027; --ink: #e8eaf0; --soft: #98a1b3; --line: #2f343f; --mark: #91a7ff;
  --token: #2b3358; --bad: #ff8787; --bad-soft: #3a2224; --box: #ff4fa8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
header, main, footer { max-width: 1240px; margin: auto; padding: 0 24px; }
header { padding-top: 44px; padding-bottom: 20px; }
h1 { margin: 0; font-size: 34px; letter-spacing: -0.02em; }
header p { margin: 6px 0 14px; color: var(--soft); font-size: 17px; max-width: 80ch; }
.chips { display: flex; flex-wrap: wrap; gap: 8px; margin: 0; padding: 0; list-style: none; }
.chips li { padding: 3px 12px; border: 1px solid var(--line); border-radius: 99px; background: var(--card); font-size: 13px; }
main { columns: 3 340px; column-gap: 20px; }
.card { break-inside: avoid; margin: 0 0 20px; padding: 18px 20px 20px; background: var(--card); border: 1px solid var(--line); border-radius: 14px; }
.card.failed { border-color: var(--bad); }
h2 { margin: 0; font-size: 17px; letter-spacing: -0.01em; }
h3 { margin: 14px 0 4px; font: 600 12px/1.4 ui-monospace, Menlo, Consolas, monospace; color: var(--soft); }
.note { margin: 2px 0 12px; color: var(--soft); font-size: 13.5px; }
.images { display: flex; gap: 12px; margin-bottom: 12px; }
figure { margin: 0; flex: 1; min-width: 0; max-width: 260px; }
figcaption { margin-top: 3px; color: var(--soft); font-size: 12px; }
.frame { position: relative; border: 1px solid var(--line); border-radius: 8px; overflow: hidden; }
.frame img { display: block; width: 100%; height: auto; }
.missing div { display: grid; place-items: center; height: 120px; border: 2px dashed var(--bad); border-radius: 8px; color: var(--bad); font-size: 34px; }
.box { position: absolute; border: 2.5px solid var(--box); border-radius: 3px; box-shadow: 0 0 0 1px #fff8; }
.box span { position: absolute; left: -2.5px; top: -2.5px; padding: 0 6px; background: var(--box); color: #fff; font-size: 11.5px; white-space: nowrap;
  border-radius: 3px 0 3px 0; }
.system, .question { margin: 0 0 8px; padding: 8px 12px; border-radius: 10px; background: var(--paper); white-space: pre-wrap; overflow-wrap: anywhere; }
.system { color: var(--soft); font-size: 13.5px; }
.system b { margin-right: 6px; font-size: 11px; text-transform: uppercase; letter-spacing: 0.06em; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font: 13.5px/1.5 ui-monospace, Menlo, Consolas, monospace; }
.text { margin-bottom: 8px; padding: 8px 12px; border-left: 3px solid var(--mark); font: inherit; }
dl { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 10px 0 0; font-size: 13px; }
dl div { display: flex; gap: 6px; }
dt { color: var(--soft); }
dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.raw { font-size: 12px; color: var(--soft); }
.token { padding: 0 3px; border-radius: 4px; background: var(--token); color: var(--mark); }
details { margin-top: 10px; font-size: 13px; }
summary { cursor: pointer; color: var(--mark); }
details pre { margin-top: 6px; }
.error { padding: 10px 14px; border-radius: 10px; background: var(--bad-soft); }
.error b { color: var(--bad); }
.error p { margin: 4px 0 0; overflow-wrap: anywhere; }
.hint { color: var(--soft); font-size: 13.5px; }
.odd { color: var(--bad); font-weight: 600; }
footer { padding-top: 6px; padding-bottom: 40px; color: var(--soft); font-size: 13px; }
"""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>pipegen demo</title><style>{style}</style></head><body>
<header><h1>pipegen</h1><p>Render once, run on any engine, get the same text back, and never lose a request.</p><ul class="chips">{chips}</ul></header>
<main>
{cards}
</main>
<footer>Made by <b>pipegen demo</b>, version {version}, with the embedded model: a few megabytes that know shapes, colours and small tasks, and nothing else.
<span class="token">Marked text</span> is a control token; a user who types one gets plain text.</footer>
</body></html>
"""
