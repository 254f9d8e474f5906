"""Tokenise: prompt text to token ids, once, and the record that every engine gets.

If no foreign text of a prompt looks like a control token, the prompt is encoded by one plain call
of the tokenizer. Otherwise it is split at its control tokens. Stretches without such look-alikes
keep their plain ids, and the others are encoded by a tokenizer that knows no control tokens.

>>> from pipegen.records.options import resolve
>>> from pipegen.records.requests import TextGenerationRequest
>>> from pipegen.testing.toy import ToyTokenizer
>>> rendered = Rendered(request=TextGenerationRequest(prompt="Hi"), options=resolve(), text="Hi")
>>> tokenize_row(rendered, (), ToyTokenizer(), None).unwrap().token_ids
(72, 105)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import groupby

from returns.result import Failure, Success

from pipegen.core.errors import InvalidRequest, TemplateFailed, UnsupportedMultimodal
from pipegen.core.foreign_calls import call_tokenizer
from pipegen.core.pipe import Pipe, batch_stage
from pipegen.core.slots import Slot
from pipegen.ending.length import check_length
from pipegen.engines.model import TokenModel, reader_of
from pipegen.engines.protocol import TokenEngine, require_token_engine
from pipegen.engines.tokenizer import Tokenizer
from pipegen.records.fields import unchecked_replace
from pipegen.records.messages import VideoSource
from pipegen.records.requests import GenerationRequest
from pipegen.records.results import Encoded, PreparedImage, Prompt
from pipegen.stages.continuation import Before, check_earlier_images
from pipegen.stages.rendering import Rendered
from pipegen.template.choose_render import hides_nothing
from pipegen.template.control_tokens import ControlTokens
from pipegen.template.image_places import Kind, Placeholders, kind_of
from pipegen.template.untrusted import Marks

_SPACE = (
    "\t\n\v\f\r"
    " \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""What an added token that takes in the white space beside it takes in (the Unicode property
White_Space).
"""


def tokenize(engine: TokenEngine) -> Pipe[Rendered, Encoded]:
    """The stage that makes token ids of prompts, images included; rows with equal prompts that come
    together share one.

    Fails with `PromptTooLong` where the text is known to be too long before it is tokenised, and as
    `tokenize_row` does.
    """
    require_token_engine("tokenize", engine)
    read = reader_of(engine)

    def prepare(_: Sequence[Rendered]) -> Callable[[Rendered], Slot[Encoded]]:
        slot = read()
        prompts: dict[Hashable, list[Slot[Prompt]]] = {}

        def encoded(rendered: Rendered, model: TokenModel) -> Slot[Encoded]:
            requested = rendered.options.max_prompt_tokens
            longest = model.capabilities.context_length
            limit = (
                longest
                if requested is None
                else requested
                if longest is None
                else min(requested, longest)
            )
            known = prompts.setdefault((_key(rendered), limit), [])
            if not known:
                known.append(_prompt(rendered, model, limit))
            return known[0].map(
                lambda prompt: Encoded(
                    request=rendered.request, options=rendered.options, prompt=prompt
                )
            )

        return lambda rendered: slot.bind(functools.partial(encoded, rendered))

    return batch_stage(
        "tokenize",
        prepare,
        takes=Rendered,
        gives=Encoded,
        rebind=lambda new: tokenize(new.engine(engine)),
    )


def _key(rendered: Rendered) -> Hashable:
    """What a prompt's ids are made of. Rows that share a prompt share these objects."""
    text = (
        rendered.text,
        rendered.hidden,
        rendered.marks,
        id(rendered.control),
        rendered.refuses,
        rendered.bos,
        rendered.thinking,
    )
    return (
        text,
        rendered.token_ids,
        rendered.before,
        rendered.thought,
        rendered.call,
        tuple([id(image) for image in rendered.images]),
    )


def _prompt(rendered: Rendered, model: TokenModel, limit: int | None) -> Slot[Prompt]:
    refusal = check_length(rendered.to_tokenize, model.tokenizer, limit)
    if refusal is not None:
        return Failure(refusal)
    prompt = tokenize_row(
        rendered,
        rendered.images,
        model.tokenizer,
        model.image_placeholder,
        model.video_placeholder,
    )
    if rendered.thought is None and rendered.call is None:
        return prompt
    return prompt.map(
        lambda encoded: unchecked_replace(encoded, thought=rendered.thought, call=rendered.call)
    )


def tokenize_row(
    rendered: Rendered,
    images: tuple[PreparedImage, ...],
    tokenizer: Tokenizer,
    image_placeholder: str | None,
    video_placeholder: str | None = None,
) -> Slot[Prompt]:
    """The prompt's ids, in two forms: with one `image_placeholder` for each image and one
    `video_placeholder` for each video, and with the expansion of each in its place.

    An expansion that is more than copies of the placeholder is put into the text before it is
    tokenised. Its ends may merge with the text around it (Gemma's line ends do). If the caller gave
    ids, it is put into these. `InvalidRequest` where a given id is outside the vocabulary, or where
    the placeholders are not those of the images and videos in their order. `UnsupportedMultimodal`
    for some without a placeholder token.
    """
    placeholders = Placeholders(image_placeholder or "", video_placeholder or "")
    if rendered.before is not None:
        return _continued(rendered, rendered.before, images, tokenizer, placeholders)
    return _compact_ids(rendered, tokenizer).bind(
        lambda ids: _with_images(rendered, ids, images, tokenizer, placeholders)
    )


def _continued(
    rendered: Rendered,
    before: Before,
    images: tuple[PreparedImage, ...],
    tokenizer: Tokenizer,
    placeholders: Placeholders,
) -> Slot[Prompt]:
    """The ids of the turns before, and those of the text that follows them; the images of earlier
    turns are in the ids already, and have to be the same.
    """
    count = len(before.image_digests)
    refusal = check_earlier_images(before, images[:count], tokenizer, placeholders)
    if refusal is not None:
        return Failure(refusal)
    lead = _lead_ids(rendered, before, tokenizer)
    following = unchecked_replace(rendered, before=None).rewritten(lambda text: text[before.lead :])

    def joined(new: Prompt) -> Slot[Prompt]:
        skipped = 0 if before.anchor_id is None else 1
        if skipped and new.token_ids[:1] != (before.anchor_id,):
            return Failure(
                TemplateFailed(
                    f"the tokenizer does not keep {before.anchor!r} apart from the text behind it"
                )
            )
        return Success(
            Prompt(
                token_ids=before.token_ids + lead + new.token_ids[skipped:],
                compact_token_ids=before.compact_token_ids + lead + new.compact_token_ids[skipped:],
                text=call_tokenizer(tokenizer.decode, before.compact_token_ids)
                + (rendered.text or "").removeprefix(before.anchor),
                images=images,
                thinking=rendered.thinking,
                render_differs=before.render_differs,
            )
        )

    return tokenize_row(following, images[count:], tokenizer, *placeholders).bind(joined)


def _lead_ids(rendered: Rendered, before: Before, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The ids of the text that follows the text of the answer, with no control token between.

    It is encoded behind a letter or a mark, since some tokenizers put a space before every text.
    """
    if not before.lead:
        return ()
    text = rendered.marks.put_back(rendered.to_tokenize[: before.lead])

    def ids(string: str) -> list[int]:
        if rendered.control is None:
            return list(call_tokenizer(tokenizer.encode_plain, string, first=False))
        return _plain_ids(string, "", "", rendered.control, tokenizer, first=False)

    for word in ("x", ".", "1"):
        alone, both = ids(word), ids(word + text)
        if both[: len(alone)] == alone:
            return tuple(both[len(alone) :])
    return tuple(ids(text))


def _with_images(
    rendered: Rendered,
    ids: tuple[int, ...],
    images: tuple[PreparedImage, ...],
    tokenizer: Tokenizer,
    placeholders: Placeholders,
) -> Slot[Prompt]:
    for kind, count in placeholders.counts(images):
        if count and not placeholders.of(kind):
            return Failure(
                UnsupportedMultimodal(
                    f"{count} {kind}s, and the model has no token that stands for one"
                )
            )
    tokens = placeholders.ids(tokenizer)
    marks = {*tokens.values()}
    placed_ids = (
        [] if marks.isdisjoint(ids) else [token_id for token_id in ids if token_id in marks]
    )
    if not images and not placed_ids:
        return Success(
            Prompt(
                token_ids=ids, compact_token_ids=ids, text=rendered.text, thinking=rendered.thinking
            )
        )
    text = (
        rendered.to_tokenize
        if rendered.text is not None and any(image.expansion is not None for image in images)
        else None
    )
    refusal = _misplaced(placed_ids, rendered.request, images, tokens, placeholders, text)
    if refusal is not None:
        return Failure(refusal)
    if text is None:
        left = iter(images)
        placed = frozenset(placed_ids)
        expanded: Slot[tuple[int, ...]] = Success(
            tuple(
                expanded_id
                for token_id in ids
                for expanded_id in (
                    _expansion_ids(next(left), token_id, tokenizer)
                    if token_id in placed
                    else (token_id,)
                )
            )
        )
    else:
        expanded = _compact_ids(
            rendered.rewritten(lambda text: _expanded_text(text, images, placeholders)),
            tokenizer,
        )
    return expanded.map(
        lambda all_ids: Prompt(
            token_ids=all_ids,
            compact_token_ids=ids,
            text=rendered.text,
            images=images,
            thinking=rendered.thinking,
        )
    )


def _misplaced(
    placed_ids: Sequence[int],
    request: GenerationRequest,
    images: Sequence[PreparedImage],
    tokens: Mapping[str, int],
    placeholders: Placeholders,
    text: str | None,
) -> InvalidRequest | None:
    """What is wrong where the placeholders of a prompt are not those of its images and videos."""
    for kind, count in placeholders.counts(images):
        token = placeholders.of(kind)
        places = placed_ids.count(tokens[kind]) if kind in tokens else 0
        if places == count and text is not None and token:
            places = text.count(token)
        if places != count and count - places == _count_in_tool_turns(request, kind, len(images)):
            return InvalidRequest(
                f"the chat template writes no {kind}s in a tool's turn, and the messages have"
                f" {count - places} there",
                hint="put them into a user's turn after it, as pg.tools(..., images='user') does",
            )
        if places != count:
            return InvalidRequest(
                f"the prompt holds {places} {kind} placeholders {token!r} for {count} {kind}s",
                hint=(
                    f"give one {kind} for each placeholder; the chat template writes one for each"
                    f" {kind} in the messages"
                ),
            )
    if list(placed_ids) != [tokens[kind_of(image)] for image in images]:
        return InvalidRequest(
            "the chat template writes the placeholders of images and videos in another order than"
            " the messages have them"
        )
    return None


def _count_in_tool_turns(request: GenerationRequest, kind: Kind, last: int) -> int:
    """How many of the last images and videos of a request stand in turns of tools."""
    placed = [
        (message.role, isinstance(source, VideoSource))
        for message in request.messages or ()
        for source in message.sources
    ]
    return placed[-last:].count(("tool", kind == "video"))


def _expansion_ids(image: PreparedImage, placeholder: int, tokenizer: Tokenizer) -> tuple[int, ...]:
    return (
        (placeholder,) * image.tokens
        if image.expansion is None
        else call_tokenizer(tokenizer.encode, image.expansion)
    )


def _expanded_text(text: str, images: tuple[PreparedImage, ...], placeholders: Placeholders) -> str:
    """The text with the expansion of each image and video in the place of its placeholder; text
    that only looks like a placeholder is hidden first, and so stays as it is.
    """
    out, start = [], 0
    for image in images:
        token = placeholders.of(kind_of(image))
        at = text.index(token, start)
        out += [
            text[start:at],
            token * image.tokens if image.expansion is None else image.expansion,
        ]
        start = at + len(token)
    return "".join(out) + text[start:]


def _compact_ids(rendered: Rendered, tokenizer: Tokenizer) -> Slot[tuple[int, ...]]:
    if rendered.token_ids is not None:
        largest = max(rendered.token_ids, default=0)
        if largest < tokenizer.vocab_size:
            return Success(rendered.token_ids)
        position = rendered.token_ids.index(largest)
        return Failure(
            InvalidRequest(
                f"prompt_token_ids[{position}] is {largest}, and the vocabulary has"
                f" {tokenizer.vocab_size} ids"
            )
        )
    hidden, text = rendered.to_tokenize, rendered.text or ""
    try:
        text.encode()
    except UnicodeEncodeError as refusal:
        message = f"the prompt holds half a surrogate pair at character {refusal.start}"
        return Failure(
            InvalidRequest(
                message,
                hint="send whole characters: the text was cut inside one, or decoded wrongly",
            )
        )
    first = rendered.bos if hidden.startswith(rendered.bos) else ""
    bos = call_tokenizer(tokenizer.encode, first) if first else ()
    if rendered.control is None:
        return Success(bos + call_tokenizer(tokenizer.encode, text[len(first) :]))
    guarded = _guarded_ids(
        hidden[len(first) :], rendered.marks, rendered.control, tokenizer, refuses=rendered.refuses
    )
    return guarded.map(lambda ids: bos + ids)


def _guarded_ids(
    hidden: str, marks: Marks, control: ControlTokens, tokenizer: Tokenizer, *, refuses: bool
) -> Slot[tuple[int, ...]]:
    """Ids in which every control id comes from a control token that is in the text while its marks
    are.

    These are the plain ids if they have exactly those control ids. A tokenizer may find more: in
    what the marks stand for, where it normalises text, or where its vocabulary has control tokens
    as words.
    """
    pieces = control.pieces(hidden)
    if hides_nothing(hidden, marks, control):
        plain = call_tokenizer(tokenizer.encode, marks.put_back(hidden))
        control_ids = control.known
        seen = [token_id for token_id in plain if token_id in control_ids]
        written = [control.ids[token] for token in pieces[1::2]]
        if seen == written or seen == [
            control.ids[token] for token in pieces[1::2] if _is_seen(tokenizer, token)
        ]:
            return Success(plain)
    if refuses:
        return Failure(
            InvalidRequest(
                "the content holds text that the tokenizer takes for a control token",
                hint='take it out, or set control_tokens="text"',
            )
        )
    out: list[int] = []
    runs: dict[
        _TextRun, list[int] | None
    ] = {}  # many turns have the same template text between them
    for run in _runs(pieces, marks, control):
        ids = (
            runs[run] if run in runs else runs.setdefault(run, _ids_of_run(run, control, tokenizer))
        )
        if ids is None:
            message = "the content holds text that the tokenizer can only write as a control token"
            return Failure(
                InvalidRequest(message, hint='take it out, or set control_tokens="allow"')
            )
        out += ids
    return Success(tuple(out))


@dataclasses.dataclass(frozen=True)
class _TextRun:
    """Stretches of text with the control tokens between, before and after them ("" at the ends of
    the prompt). The token before is not its own.
    """

    texts: tuple[str, ...]
    tokens: tuple[str, ...]
    plain: bool
    """Whether the texts hold nothing that looks like a control token."""


def _runs(pieces: list[str], marks: Marks, control: ControlTokens) -> Iterator[_TextRun]:
    """The prompt cut into runs, each as long as can be of plain texts, or of one text that is
    not.
    """
    tokens = ["", *pieces[1::2], ""]
    texts = [marks.put_back(piece) for piece in pieces[0::2]]

    def is_plain(row: int) -> bool:
        """Whether no control token begins in the text, or ends in it."""
        before, after = tokens[row], tokens[row + 1]
        beside = [*(["", before] if before else []), texts[row], *([after, ""] if after else [])]
        return texts[row] == pieces[2 * row] or control.pieces("".join(beside), at_most=2) == beside

    for plain, rows in groupby(range(len(texts)), key=is_plain):
        group = list(rows)
        for first, last in [(group[0], group[-1])] if plain else [(row, row) for row in group]:
            yield _TextRun(tuple(texts[first : last + 1]), tuple(tokens[first : last + 2]), plain)


def _ids_of_run(run: _TextRun, control: ControlTokens, tokenizer: Tokenizer) -> list[int] | None:
    """The ids of the run's texts and of the tokens between and after them; None where a text can
    only be written with control ids.
    """
    written, control_ids = [control.ids[token] for token in run.tokens if token], control.known
    if not any(run.texts):
        return written[1:] if run.tokens[0] else written
    if run.plain:
        ids = call_tokenizer(
            tokenizer.encode,
            run.tokens[0]
            + "".join(text + token for text, token in zip(run.texts, run.tokens[1:], strict=True)),
        )
        if [token_id for token_id in ids if token_id in control_ids] == written and _holds_ends(
            ids, run, control
        ):
            return list(ids[1:] if run.tokens[0] else ids)
    out: list[int] = []
    for row, text in enumerate(run.texts):
        before, after = run.tokens[row], run.tokens[row + 1]
        ids_of_text = _plain_ids(text, before, after, control, tokenizer, first=not before)
        if not control_ids.isdisjoint(ids_of_text):
            return None
        out += [*ids_of_text, *([control.ids[after]] if after else [])]
    return out


def _holds_ends(ids: tuple[int, ...], run: _TextRun, control: ControlTokens) -> bool:
    before, after = run.tokens[0], run.tokens[-1]
    return (not before or ids[0] == control.ids[before]) and (
        not after or ids[-1] == control.ids[after]
    )


def _plain_ids(
    piece: str,
    before: str,
    after: str,
    control: ControlTokens,
    tokenizer: Tokenizer,
    *,
    first: bool,
) -> list[int]:
    """Ids of the text between two control tokens ("" at the ends of the prompt), without any of
    theirs.
    """
    pieces = control.ordinary_pieces(piece)
    beside = [before, *pieces[1::2], after]
    out: list[int] = []
    for row, text in enumerate(pieces[0::2]):
        bare = (
            text.lstrip(_SPACE) if beside[row] and _takes_space(tokenizer, beside[row])[1] else text
        )
        bare = (
            bare.rstrip(_SPACE)
            if beside[row + 1] and _takes_space(tokenizer, beside[row + 1])[0]
            else bare
        )
        out += call_tokenizer(tokenizer.encode_plain, bare, first=first and not row) if bare else ()
        out += [control.ordinary[pieces[2 * row + 1]]] if 2 * row + 1 < len(pieces) else []
    return out


@functools.lru_cache(maxsize=4096)
def _takes_space(tokenizer: Tokenizer, token: str) -> tuple[bool, bool]:
    """Whether the added token takes in the white space before it, and after it, as Phi's do. Found
    out, since it is no part of its text.
    """
    alone = (tokenizer.control_tokens[token],)
    return (
        call_tokenizer(tokenizer.encode, " \n" + token) == alone,
        call_tokenizer(tokenizer.encode, token + " \n") == alone,
    )


@functools.lru_cache(maxsize=4096)
def _is_seen(tokenizer: Tokenizer, token: str) -> bool:
    """Whether the tokenizer sees the token inside a word; some are seen only as whole words."""
    return tokenizer.control_tokens[token] in call_tokenizer(tokenizer.encode, f"x{token}x")
