"""The demo's page: one HTML file without scripts, with every text escaped."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from pipegen.cli.demo import BROKEN, IMAGES
from pipegen.core.distribution import version
from pipegen.core.slots import is_ok
from pipegen.records.results import GenerationResult
from pipegen.report.boxes import boxes_in
from pipegen.report.gallery import safe

if TYPE_CHECKING:
    from pipegen.cli.demo import Outcome

__all__ = ["page"]

PAGE = Path(__file__).with_name("demo_page.html")


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
    chips = "".join(f"<li>{safe(fact)}</li>" for fact in facts)
    cards = "\n".join(_card(outcome) for outcome in outcomes)
    template = Template(PAGE.read_text(encoding="utf-8"))
    return template.substitute(chips=chips, cards=cards, version=safe(version()))


def _card(outcome: Outcome) -> str:
    case, slot = outcome.case, outcome.slot
    result = slot.unwrap() if is_ok(slot) else None
    kind = "card" if result else "card failed"
    system = f'<p class="system"><b>system</b> {safe(case.system)}</p>' if case.system else ""
    answer = _answer(outcome, result) if result else _error(outcome)
    odd = "" if outcome.good else '<p class="odd">This did not come out as expected.</p>'
    return f"""<article class="{kind}">
<h2>{safe(case.title)}</h2><p class="note">{safe(case.note)}</p>
{_images(outcome, result)}{system}<p class="question">{safe(case.question)}</p>{odd}
{answer}
</article>"""


def _images(outcome: Outcome, result: GenerationResult | None) -> str:
    if not outcome.case.images:
        return ""
    drawn = "".join(
        f'<div class="box" style="left:{box.left:g}%;top:{box.top:g}%;width:{box.width:g}%;height:{box.height:g}%"><span>{safe(box.label)}</span></div>'
        for box in (boxes_in(result.text, (1, 1), "thousandths") if result and len(outcome.case.images) == 1 else ())
    )
    return '<div class="images">' + "".join(_image(name, drawn) for name in outcome.case.images) + "</div>\n"


def _image(name: str, drawn: str) -> str:
    if name == BROKEN:
        return f'<figure class="missing"><div>&#x26A0;</div><figcaption>{safe(name)}: half of the file is missing</figcaption></figure>'
    data = base64.b64encode((IMAGES / name).read_bytes()).decode()
    kind = mimetypes.guess_type(name)[0] or "image/png"
    image = f'<img alt="{safe(name)}" src="data:{kind};base64,{data}">'
    return f'<figure><div class="frame">{image}{drawn}</div><figcaption>{safe(name)}</figcaption></figure>'


def _answer(outcome: Outcome, result: GenerationResult) -> str:
    texts = "".join(f'<pre class="text">{safe(sample.text)}</pre>' for sample in result.samples or (result,))
    facts = [("finish", result.finish.value)] + ([("stop", repr(result.stop))] if result.stop is not None else [])
    facts += [("prompt tokens", str(result.prompt_tokens)), ("generated", str(result.completion_tokens)), ("thinking", str(result.thinking))]
    facts += [("grid", " x ".join(map(str, grid))) for grid in result.image_grid_thw if grid]
    rows = "".join(f"<div><dt>{safe(name)}</dt><dd>{safe(value)}</dd></div>" for name, value in facts)
    opened = " open" if outcome.case.shows_prompt else ""
    return f"""{texts}
<dl>{rows}</dl>
<h3>raw_text</h3><pre class="raw">{_pieces(outcome.answer)}</pre>
<details{opened}><summary>The prompt, as the model gets it</summary><pre class="raw">{_pieces(outcome.prompt)}</pre></details>"""


def _pieces(pieces: Sequence[tuple[str, bool]]) -> str:
    return "".join(f'<span class="token">{safe(text)}</span>' if control else safe(text) for text, control in pieces)


def _error(outcome: Outcome) -> str:
    error = outcome.slot.failure()
    return f"""<div class="error"><b>{safe(type(error).__name__)}</b><p>{safe(error.message)}</p><p class="hint">{safe(error.hint)}</p></div>
<p class="note">The other requests of the batch were answered in the same call.</p>"""
