"""`pipegen view`: results as a page to look at, alone or beside those of another run."""

from __future__ import annotations

import base64
import contextlib
import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from returns.result import Success

from pipegen.cli.export_command import COMMAND, command_of
from pipegen.cli.inputs import Item
from pipegen.cli.outputs import refuse_used, say
from pipegen.cli.sources import Question, open_source, within
from pipegen.cli.usage import images_of, refuse
from pipegen.core.distribution import MissingExtra, need
from pipegen.core.errors import GenerationError
from pipegen.core.functional import without_none
from pipegen.io.forms import TableError
from pipegen.io.jsonl import request_from_row
from pipegen.io.results_in import results_in
from pipegen.io.tables import Columns
from pipegen.jobs.journal import SETTINGS
from pipegen.jobs.new_file import JournalError, new_file
from pipegen.media.frames import choose_frames
from pipegen.media.image import open_image
from pipegen.media.source import load_sources
from pipegen.media.video import frames_of
from pipegen.records.messages import ImageSource, VideoSource, plain_messages, shown
from pipegen.records.parse_request import carried
from pipegen.records.request_forms import KEYS
from pipegen.records.requests import GenerationRequest, ImagePolicy, VlmGenerationRequest
from pipegen.report.boxes import Box, Scale, boxes_in
from pipegen.report.diff import Occurrence, Occurrences
from pipegen.report.gallery import (
    MISSING,
    PAGE_ROWS,
    Entry,
    Exchange,
    Figure,
    Folded,
    Overview,
    card,
    counted,
    ending,
    opening,
)

if TYPE_CHECKING:
    from PIL import Image

    from pipegen.cli.app_results import ViewFlags


_SIDE, _SIDE_WITH_BOXES = 480, 1200
"""The longest side of an image on the page, in pixels."""
_SMALL = 240
"""Images with shorter sides are not blurred by JPEG."""
_FRAMES = 32
"""The most frames of one video that are shown."""
_SAMPLES = 16
"""Samples of one request that are shown."""


def run_view(flags: ViewFlags, rows: int = PAGE_ROWS) -> int:
    """Write the page, or a folder of pages where there are more than `rows` results. The exit code
    is 0.
    """
    if flags.boxes not in get_args(Scale):
        refuse(f"takes one of {', '.join(get_args(Scale))}, not {flags.boxes!r}", "--boxes")
    for path in (flags.results, flags.other):
        if path is not None and path.is_dir():
            refuse(f"{path} is a folder, not a file of results{_of_job(path)}", "RESULTS")
    images = images_of(flags.image_root, False, ())
    try:
        refuse_used("--out", flags.out, [flags.results, flags.other, flags.asked])
        overview, count = _overview(flags)
        pages = max(1, -(-count // rows))
        out = flags.out or flags.results.with_suffix(".html" if pages == 1 else ".pages")
        if pages == 1 and out.is_dir():
            refuse(f"{out} is a folder; give a file in it", "--out")
        if pages > 1 and not out.is_dir():
            out.mkdir()
        names = ["index.html", *(f"page-{number:04}.html" for number in range(2, pages + 1))]
        cards = _cards(flags, images)
        for number, name in enumerate(names):
            with new_file(out if pages == 1 else out / name) as stream:
                stream.write(opening(overview, number, names).encode())
                for _, text in zip(range(rows), cards, strict=False):
                    stream.write(text.encode())
                stream.write(ending().encode())
    except (TableError, MissingExtra) as refusal:
        refuse(str(refusal), "RESULTS")
    except JournalError as refusal:
        refuse(str(refusal), "--out")
    except OSError as refusal:
        refuse(
            f"{str(refusal.filename)!r} cannot be read or written: {refusal.strerror}", "RESULTS"
        )
    if flags.show:
        import webbrowser

        webbrowser.open((out if pages == 1 else out / names[0]).absolute().as_uri())
    say(
        f"{out if pages == 1 else out / names[0]}: {counted(count, 'result')}"
        + (f" on {pages} pages" if pages > 1 else "")
    )
    return 0


def _of_job(folder: Path) -> str:
    """How the results of a job's folder become a file."""
    if (folder / COMMAND).exists():
        return f": pipegen export {folder} -o results.jsonl writes those of this job"
    if (folder / SETTINGS).exists():
        return (
            ": it is a job of a program, where pg.finished_rows(folder, pairs) gives its results,"
            " and pg.write_table writes them"
        )
    return ""


def _overview(flags: ViewFlags) -> tuple[Overview, int]:
    """The counts of all results: the file is read once for them."""
    kinds: Counter[str] = Counter()
    errors: set[str] = set()
    other_kinds: Counter[str] = Counter()
    other_errors: set[str] = set()
    other_entries = _by_id(flags.other)
    count, differing, name_of = 0, 0, Occurrences()
    for values in results_in(flags.results):
        entry = entry_of(values)
        name = name_of(entry.id)
        count += 1
        kinds[entry.kind] += 1
        if not entry.ok:
            errors.add(entry.kind)
        against = other_entries.get(name)
        other_kinds[MISSING if against is None else against.kind] += 1
        if against is not None and not against.ok:
            other_errors.add(against.kind)
        differing += against is None or against.outcome != entry.outcome
    if flags.other is None:
        return Overview(flags.results.name, kinds, frozenset(errors)), count
    other = Overview(flags.other.name, other_kinds, frozenset(other_errors))
    return Overview(flags.results.name, kinds, frozenset(errors), other, differing), count


def _by_id(path: Path | None) -> dict[Occurrence, Entry]:
    """The results of a file by their ids; of equal ids, by their order too."""
    entries, name_of = () if path is None else map(entry_of, results_in(path)), Occurrences()
    return {name_of(entry.id): entry for entry in entries}


def _cards(flags: ViewFlags, images: ImagePolicy) -> Iterator[str]:
    other_entries = _by_id(flags.other)
    names = None if flags.other is None else (flags.results.name, flags.other.name)
    with contextlib.ExitStack() as stack:
        request_lookup, name_of = _ViewedRequests(flags, images, stack), Occurrences()
        for values in results_in(flags.results):
            name = name_of(values.get("id"))
            request, metadata = request_lookup.of(name, values)
            entry = entry_of(values, request)
            first = (_rounds(values) or [values])[0]
            prompt = first.get("prompt_text") or ("" if request is None else _prompt(request))
            sources = () if request is None else request.sources
            times = iter(_times_in(first))
            figures = [
                figure
                for source in sources
                for figure in (
                    (Figure(_NO_FOLDER, None),)
                    if request_lookup.images.root is None
                    and _has_path(source)
                    and flags.asked is None
                    else _frames(source, request_lookup.images, next(times, ()))
                    if isinstance(source, VideoSource)
                    else (
                        figure_of(
                            source,
                            entry,
                            cast("Scale", flags.boxes),
                            request_lookup.images,
                            alone=len(sources) == 1,
                        ),
                    )
                )
            ]
            yield card(
                entry, str(prompt), figures, metadata, other_entries.get(name), compared=names
            )


_NO_FOLDER = "files of images are shown with --image-root, the folder that they are in"


def _has_path(source: ImageSource) -> bool:
    """Whether a file of this machine is read for it."""
    frames = source.frames if isinstance(source, VideoSource) else ()
    return any(
        one.path is not None or (one.url or "")[:5].lower() == "file:" for one in (source, *frames)
    )


def _rounds(values: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The turns of a conversation, the last one included."""
    rounds = values.get("rounds")
    return (
        [turn for turn in rounds if isinstance(turn, Mapping)] if isinstance(rounds, list) else []
    )


def _turns(values: Mapping[str, object], request: GenerationRequest | None) -> tuple[Exchange, ...]:
    """The turns before the last. What was asked next is what its prompt has more; where prompts are
    not written, it is what the request says.
    """
    words = [] if request is None else [_words(turn) for turn in plain_messages(request.turns)]
    turns = []
    for place, (exchange, after) in enumerate(pairwise(_rounds(values))):
        conversation = f"{exchange.get('prompt_text') or ''}{exchange.get('raw_text') or ''}"
        prompt = str(after.get("prompt_text") or "")
        next_question = (
            prompt.removeprefix(conversation) if prompt else "".join(words[place : place + 1])
        )
        turns.append(
            Exchange(
                str(exchange.get("text") or ""), _calls(exchange.get("tool_calls")), next_question
            )
        )
    return tuple(turns)


def _calls(calls: object) -> str:
    """The tool calls, one on each line."""
    lines = []
    for call in calls if isinstance(calls, (list, tuple)) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            lines.append(f"{function.get('name')}({function.get('arguments')})")
        else:
            lines.append(str(call))
    return "\n".join(lines)


def entry_of(values: Mapping[str, object], request: GenerationRequest | None = None) -> Entry:
    """A result of any form, as it is shown. What is missing in the file is left out."""
    name = str(values.get("id"))
    if not values.get("ok"):
        error = values.get("error")
        error = error if isinstance(error, Mapping) else {}
        return Entry(
            name,
            str(error.get("type")),
            False,
            error=(str(error.get("message") or ""), str(error.get("hint") or "")),
        )
    samples = values.get("samples")
    answers = (
        [sample.get("text") for sample in samples if isinstance(sample, Mapping)][:_SAMPLES]
        if isinstance(samples, list) and samples
        else [values.get("text")]
    )
    texts = [str(text or "") for text in answers]
    facts_by_label = {
        "prompt tokens": values.get("prompt_tokens"),
        "generated": values.get("completion_tokens"),
        # a stop may be a line end
        "stop": None if values.get("stop") is None else repr(values["stop"]),
        "margin": values.get("margin"),
        "route": values.get("route"),
    }
    facts = tuple(
        (label, str(value)) for label, value in facts_by_label.items() if value not in (None, "", 0)
    )
    folded_texts = {"reasoning": values.get("reasoning"), "raw text": values.get("raw_text")}
    calls = _calls(values.get("tool_calls"))
    facts += (("tool calls", calls),) if calls else ()
    return Entry(
        name,
        str(values.get("finish")),
        True,
        tuple(texts),
        folded=tuple(
            Folded(label, ((str(text), False),))
            for label, text in folded_texts.items()
            if text and not (label == "raw text" and text in texts)
        ),
        facts=facts,
        turns=_turns(values, request),
    )


def _is_below(path: str, folder: str | os.PathLike[str] | None) -> bool:
    """Whether a path is in a folder, whatever `..` and links say."""
    if folder is None:
        return False
    root, real = os.path.realpath(folder), os.path.realpath(path)
    return os.path.commonpath([root, real]) == root


_SHOWN = {"messages", "prompt", "images", "image", "videos", "video", "turns", *KEYS}
"""What is shown of a request."""


class _ViewedRequests:
    """The requests of the results: of the rows themselves, or of the input of the run, which is
    read beside them.

    What the command of a job names is not trusted: results come from others, too. Its input is read
    in the folder of `--image-root` alone, and without a flag no file of an image is.
    """

    def __init__(self, flags: ViewFlags, images: ImagePolicy, stack: contextlib.ExitStack) -> None:
        self.images = images
        self._items: Iterator[Item] = iter(())
        self._columns = Columns()
        command = command_of(flags.results)
        question = Question(None)
        if command is not None:
            self._columns = command.read
            question = Question(
                command.prompt, command.system, tuple(command.images), overwrite=True
            )
        source = None if command is None else command.source
        if flags.asked is not None:
            source = str(flags.asked)
            self.images = within(images, source)
            self._items = open_source(
                source, question, self.images, self._columns, stack, "--input"
            ).items
        elif source is not None and not _is_below(source, images.root):
            say(f"the run's input is not read; to show its requests: --input {source}")
        elif source is not None and os.path.exists(source):
            # where it is gone, the answers are there still
            self._items = open_source(source, question, images, self._columns, stack).items
        elif command is not None and source is None:
            self._items = open_source(None, question, images, self._columns, stack).items
        self._passed: dict[Occurrence, Item] = {}
        self._name_of = Occurrences()

    def of(
        self, occurrence: Occurrence, values: Mapping[str, object]
    ) -> tuple[GenerationRequest | None, Mapping[str, Any]]:
        """The request of a result, and what was carried along with it."""
        row = values.get("row")
        metadata = values.get("metadata")
        if isinstance(row, Mapping):
            request_fields = _written(self._columns, row).request(row)
            _, slot = request_from_row(
                {name: request_fields[name] for name in request_fields if name in _SHOWN}, 1
            )
            return slot.value_or(None), without_none(carried(request_fields))
        matching_item = self._passed.pop(occurrence, None)
        while matching_item is None:
            item = next(self._items, None)
            if item is None:
                break
            item_name = self._name_of(item.origin.id)
            if item_name == occurrence:
                matching_item = item
            elif len(self._passed) < PAGE_ROWS:
                self._passed[item_name] = item  # rows may be in another order
        request = None if matching_item is None else matching_item.slot.value_or(None)
        return request, metadata if isinstance(metadata, Mapping) else {}


def _written(columns: Columns, values: Mapping[str, object]) -> Columns:
    """The columns under their names in a row of results. One that has the name of an answer's
    column gets `input_` before it.
    """
    fields = {
        field: column if column in values else f"input_{column}"
        for field, column in columns.fields.items()
    }
    return columns._replace(fields=fields)


def _prompt(request: GenerationRequest) -> str:
    if request.messages is None:
        return request.prompt or ""
    return "\n".join(map(_words, plain_messages(request.messages)))


def _words(message: Mapping[str, Any]) -> str:
    content = message["content"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    words = "".join(
        part["text"] if part["type"] == "text" else f"[{part['type']}] " for part in parts
    )
    return f"{message['role']}: {words}"


def figure_of(
    source: ImageSource, entry: Entry, scale: Scale, images: ImagePolicy, *, alone: bool
) -> Figure:
    """An image of the request, small, with the boxes of the answer where it is the only one."""

    def drawn(image: Image.Image) -> Figure:
        shows_boxes = alone and entry.ok and entry.texts
        boxes = boxes_in(entry.texts[0], image.size, scale) if shows_boxes else ()
        return _drawn(_name(source), image, boxes)

    request = VlmGenerationRequest(prompt="", images=[source])
    return (
        load_sources(request, images)
        .bind(lambda loaded: open_image(loaded.sources[0].data or b"", images))
        .map(drawn)
        .lash(_undrawn)
        .unwrap()
    )


def _undrawn(error: GenerationError) -> Success[Figure]:
    return Success(Figure(error.message, None))


def _name(source: ImageSource) -> str:
    if source.path is not None:
        return Path(source.path).name
    return shown(source.url) if source.url is not None else ""


def _times_in(values: Mapping[str, object]) -> Sequence[Sequence[float]]:
    """The times of each video's frames; none where a line has another form."""
    times: Any = values.get("video_times")
    try:
        return [sorted(set(map(float, video))) for video in times or ()]
    except (TypeError, ValueError, OverflowError):
        return ()


def _frames(
    source: VideoSource, policy: ImagePolicy, chosen_times: Sequence[float]
) -> tuple[Figure, ...]:
    """The frames of a video at these times, each small; without times a few of them."""
    try:
        if not source.frames:
            need("av", "video", "reading a video")
    except MissingExtra as missing:
        return (Figure(str(missing), None),)

    def choose(times: Sequence[float], *, whole: bool) -> tuple[int, ...]:
        if not chosen_times:
            return choose_frames(times, fps=2, least=4, most=_FRAMES, multiple=1)
        nearest = (
            min(range(len(times)), key=lambda place: abs(times[place] - time))
            for time in chosen_times[:_FRAMES]
        )
        return tuple(dict.fromkeys(nearest))

    def drawn(frames: Sequence[tuple[float, Image.Image]]) -> tuple[Figure, ...]:
        name = _name(source)
        return tuple(_drawn(f"{name} {time:.2f} s".strip(), image) for time, image in frames)

    return (
        load_sources(VlmGenerationRequest(prompt="", videos=[source]), policy)
        .bind(lambda loaded: frames_of(cast("VideoSource", loaded.sources[0]), 0, choose))
        .map(drawn)
        .lash(lambda error: _undrawn(error).map(lambda figure: (figure,)))
        .unwrap()
    )


def _drawn(name: str, image: Image.Image, boxes: tuple[Box, ...] = ()) -> Figure:
    side = _SIDE_WITH_BOXES if boxes else _SIDE
    image.thumbnail((side, side))
    data = io.BytesIO()
    kind = "PNG" if max(image.size) < _SMALL else "JPEG"
    image.save(data, kind, quality=85)
    url = f"data:image/{kind.lower()};base64,{base64.b64encode(data.getvalue()).decode()}"
    return Figure(name, url, boxes, image.size)
