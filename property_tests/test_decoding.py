"""Decoding ids in pieces gives the text of decoding them at once; a request followed token by token
ends like one judged whole; tokens after an end change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import assume, example, given, strategies as st
from support.served import ToyModel

from pipegen.backends.http.access import access_to
from pipegen.core.errors import BackendFailed, MalformedResponse
from pipegen.core.slots import Slot, is_ok
from pipegen.ending.detokenize import Detokenizer, spell
from pipegen.ending.stop_scan import StopScanner, cut
from pipegen.ending.stop_state import Stripper, TokenFold, ending_ids
from pipegen.engines.plugin import Plugin
from pipegen.engines.settings import ServerSettings
from pipegen.records.option_groups import DecodeOptions, StopOptions
from pipegen.records.option_records import GenerationOptions
from pipegen.records.options import resolve
from pipegen.records.requests import TextGenerationRequest
from pipegen.records.results import Decoded, Encoded, Ending, Finish, Prompt, Raw, TokenLogprob
from pipegen.stages.ending import end_row
from pipegen.stages.trimming import trim_row
from pipegen.testing.texts import awkward_texts, chunkings, texts, token_ids, toy_tokenizers
from pipegen.testing.toy import ToyTokenizer

REPLACEMENT = "\ufffd"


class Generation(NamedTuple):
    """A row as an engine may generate it, past its end."""

    tokenizer: ToyTokenizer
    options: GenerationOptions
    eos_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    plugins: tuple[Plugin, ...]

    def raw(self, token_ids: Sequence[int] | None = None, **how: bool | str | Ending | None) -> Raw:
        prompt = Prompt(token_ids=(65,), compact_token_ids=(65,))
        encoded = Encoded(
            request=TextGenerationRequest(prompt="A"), options=self.options, prompt=prompt
        )
        return Raw(
            encoded=encoded,
            token_ids=self.token_ids if token_ids is None else tuple(token_ids),
            **how,  # type: ignore[arg-type]
        )

    def judged(self, raw: Raw | None = None) -> Slot[Decoded]:
        return end_row(raw or self.raw(), self.tokenizer, self.eos_token_ids, self.plugins)

    def follower(self, *, text: bool = True) -> TokenFold:
        return TokenFold(self.options, self.tokenizer, self.eos_token_ids, self.plugins, text=text)


def halting(name: str, letter: str, times: int, *, early: int = 0, raises: bool = False) -> Plugin:
    """Halts (or raises) when it has seen a letter so many times, keeping up to `early` characters
    less than it has seen.
    """

    def feed(seen: int, text: str) -> tuple[int, int | None]:
        for place, character in enumerate(text, 1):
            seen += character == letter
            if seen >= times and character == letter:
                if raises:
                    raise ValueError("seen enough")
                return seen, max(0, place - early)
        return seen, None

    return Plugin(name=name, start=lambda: 0, feed=feed)


def plugins() -> st.SearchStrategy[tuple[Plugin, ...]]:
    names, mostly_not = st.sampled_from(["p", "q"]), st.sampled_from([False, False, False, True])
    one = st.builds(
        halting,
        names,
        st.sampled_from("abc"),
        st.integers(1, 4),
        early=st.integers(0, 2),
        raises=mostly_not,
    )
    return st.one_of(st.just(()), st.lists(one, max_size=2).map(tuple))


RAW_STOPS = (
    *("a<|im_end|>", "<|image_pad|>b", "|><|image_pad|>", "c<|image_pad|>", "é<|im_start|>ab"),
    *("<|image_pad|>\ufffd", "\ufffd<|im_end|>", "\ufffd\ufffd<|im_end|>"),
)
STOPS = st.one_of(
    st.text("abc", min_size=1, max_size=3),
    st.sampled_from(["<|im_end|>", "<|image_pad|>", "é", "好", REPLACEMENT, "\n\n", *RAW_STOPS]),
)


@st.composite
def generations(draw: st.DrawFn, *, watched: bool = True) -> Generation:
    stops = tuple(draw(st.lists(STOPS, max_size=3)))
    tokenizer = draw(
        toy_tokenizers(*(stop for stop in stops if stop not in ToyTokenizer().special_tokens))
    )
    ids = draw(token_ids(tokenizer, *stops))
    some_ids = st.lists(
        st.sampled_from(sorted({0, 97, *tokenizer.special_tokens.values(), *ids})), max_size=2
    ).map(tuple)
    most = draw(st.integers(1, len(ids) + 3))
    options = GenerationOptions(
        max_new_tokens=most,
        min_new_tokens=draw(st.one_of(st.just(0), st.integers(0, most))),
        stop=StopOptions(stop=stops, stop_token_ids=draw(some_ids), ignore_eos=draw(st.booleans())),
        decode=DecodeOptions(
            skip_special_tokens=draw(st.booleans()), strip_whitespace=draw(st.booleans())
        ),
    )
    return Generation(
        tokenizer, resolve(options), draw(some_ids), ids, draw(plugins()) if watched else ()
    )


@given(st.data())
def test_joined_pieces_are_the_decoded_whole(data: st.DataObject) -> None:
    tokenizer = data.draw(toy_tokenizers())
    ids = data.draw(token_ids(tokenizer, max_pieces=20))
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.feed(token_id) for token_id in ids]
    assert "".join((*pieces, detokenizer.finish())) == tokenizer.decode(ids)
    assert spell(tokenizer, ids) == (
        tokenizer.decode(ids),
        tuple(len("".join(pieces[: count + 1])) for count in range(len(ids))),
    )


@given(st.data())
def test_a_character_belongs_to_the_token_that_completes_it(data: st.DataObject) -> None:  # A15
    tokenizer = data.draw(toy_tokenizers())
    text = data.draw(awkward_texts().filter(lambda text: REPLACEMENT not in text))
    ids = tokenizer.encode_plain(text, first=False)
    assert (
        REPLACEMENT
        not in "".join(map((detokenizer := Detokenizer(tokenizer)).feed, ids))
        + detokenizer.finish()
    )
    _, ends = spell(tokenizer, ids)
    assert [text[:end] for end in ends] == [
        tokenizer.decode(ids[: count + 1]).rstrip(REPLACEMENT) for count in range(len(ids))
    ]


@given(st.lists(st.integers(128, 255), max_size=80))
def test_bytes_that_are_no_text_wait_for_sixteen_tokens_at_most(ids: list[int]) -> None:
    tokenizer = ToyTokenizer()
    detokenizer, shown = Detokenizer(tokenizer), ""
    for count, token_id in enumerate(ids, 1):
        shown += detokenizer.feed(token_id)
        assert tokenizer.decode(ids).startswith(shown)
        assert len(shown) >= len(tokenizer.decode(ids[: max(0, count - 16)])) - 3
    assert shown + detokenizer.finish() == tokenizer.decode(ids)


def _ending_with(stops: tuple[str, ...], *token_ids: int) -> Generation:
    """A row whose last token is the end token 257, and completes a stop string as well."""
    options = resolve(GenerationOptions(max_new_tokens=9, stop=stops))
    return Generation(ToyTokenizer(), options, (257,), token_ids, ())


@given(generations())
@example(_ending_with(("\ufffd", "\ufffd\ufffd<|im_end|>"), 97, 0xE2, 0xE2, 257))
@example(_ending_with(("a\ufffd", "\ufffd<|im_end|>"), 97, 0xE2, 0xE2, 257))
def test_a_followed_row_is_the_judged_row(row: Generation) -> None:
    follower = row.follower()
    shown = "".join(map(follower.feed, row.token_ids)) + follower.close()
    judged = row.judged()
    assert follower.feed(97) == "" == follower.close()
    if follower.failure is not None:
        assert (judged.failure(), follower.finish) == (follower.failure, Finish.ABORTED)
        return
    decoded = judged.unwrap()
    text = (
        decoded.text.strip()
        if row.options.decode is not None and row.options.decode.strip_whitespace
        else decoded.text
    )
    assert (shown, follower.finish, follower.stop, follower.count) == (
        text,
        decoded.finish,
        decoded.stop,
        len(decoded.raw.token_ids),
    )


@given(generations())
def test_a_row_followed_without_text_ends_the_same(row: Generation) -> None:
    shown, silent = row.follower(), row.follower(text=False)
    for token_id in row.token_ids:
        shown.feed(token_id)
        assert silent.feed(token_id) == ""
        assert (silent.finish, silent.stop, silent.count, silent.failure) == (
            shown.finish,
            shown.stop,
            shown.count,
            shown.failure,
        )


@given(generations(), st.booleans(), st.booleans(), st.data())
def test_ids_that_are_taken_in_pieces_end_a_row_as_those_that_are_fed_one_by_one(
    row: Generation, shows: bool, by_ids_alone: bool, data: st.DataObject
) -> None:
    if by_ids_alone:  # most of these are only stored
        stop = replace(row.options.stop or StopOptions(), stop=())
        row = row._replace(options=replace(row.options, stop=stop), plugins=())
    one, several = row.follower(text=shows), row.follower(text=shows)
    for piece in data.draw(chunkings(row.token_ids)):
        assert several.take(piece) == "".join(map(one.feed, piece))
        assert (several.finish, several.stop, several.token_ids, several.failure) == (
            one.finish,
            one.stop,
            one.token_ids,
            one.failure,
        )
    assert several.close() == one.close()


@given(generations())
def test_what_an_engine_makes_beyond_the_end_changes_nothing(row: Generation) -> None:
    follower = row.follower()
    for token_id in row.token_ids:
        follower.feed(token_id)
    assume(follower.finish is not None)
    assert row.judged(row.raw(row.token_ids[: follower.count])) == row.judged()


@given(generations(), st.booleans(), st.booleans())
def test_a_row_that_was_followed_is_not_searched_again_and_ends_the_same(
    row: Generation, shows: bool, cut_short: bool
) -> None:
    follower = row.follower(text=shows)
    follower.take(row.token_ids[: len(row.token_ids) // 2])
    follower.take(row.token_ids[len(row.token_ids) // 2 :])
    cut_short = cut_short and follower.finish is None
    follower.close(aborted=cut_short)
    assume(follower.failure is None)
    seen: list[str] = []

    def feed(state: None, text: str) -> tuple[None, None]:
        seen.append(text)
        return None, None

    told = tuple(Plugin(name=plugin.name, start=lambda: None, feed=feed) for plugin in row.plugins)
    followed = row.raw(
        follower.token_ids, ending=follower.ending, aborted=follower.finish is Finish.ABORTED
    )
    again = end_row(followed, row.tokenizer, row.eos_token_ids, told).unwrap()
    anew = row.judged(row.raw(aborted=cut_short)).unwrap()
    assert seen == []
    for name in ("text", "raw_text", "text_ends", "raw_ends", "finish", "stop"):
        assert getattr(again, name) == getattr(anew, name), name
    assert again.raw.token_ids == anew.raw.token_ids


@given(
    generations(watched=False), st.sampled_from(["stop", "length", "abort", None]), st.booleans()
)
def test_a_whole_answer_of_a_server_ends_as_one_that_is_followed(
    row: Generation, finish: str | None, at_its_length: bool
) -> None:
    pytest.importorskip("aiohttp")
    from pipegen.backends.servers.sending import Sender
    from pipegen.backends.servers.server import ServerEngine, ServerRow
    from pipegen.backends.servers.vllm_dialect import VLLM
    from pipegen.backends.servers.wire import Completion

    model = ToyModel()
    model.tokenizer, model.vocab_size, model.eos_token_ids = (
        row.tokenizer,
        row.tokenizer.vocab_size,
        row.eos_token_ids,
    )
    sender = Sender(
        VLLM,
        access_to("http://localhost:1", default="", variable="NO_SUCH_KEY"),
        ServerSettings(),
        "toy",
    )
    engine = ServerEngine(sender, model)
    asked, ids = (
        row.raw().encoded,
        row.token_ids[: row.options.max_new_tokens if at_its_length else None],
    )
    completion = Completion(token_ids=ids, finish=finish)
    followed = ServerRow(engine, asked)
    followed.take_piece(completion)

    def ended(raw: Raw) -> tuple[object, ...]:
        decoded = row.judged(raw).unwrap()
        encoded = decoded.raw.encoded
        return (
            *(decoded.text, decoded.raw_text, decoded.finish, decoded.stop),
            *(decoded.raw.token_ids, encoded.options, encoded.clipped_from),
        )

    answer = engine.answer(asked, completion)
    if is_ok(answer):
        assert answer.map(ended) == followed.slot().map(ended)
    else:  # how the server says that it ended is not what its ids show, or it gave the answer up
        gave_up = finish == "abort" and isinstance(answer.failure(), BackendFailed)
        assert gave_up or isinstance(answer.failure(), MalformedResponse)


@given(generations())
def test_judging_again_changes_nothing(row: Generation) -> None:
    judged = row.judged()
    assert judged.bind(lambda decoded: row.judged(decoded.raw)) == judged


@given(generations())
def test_text_and_raw_text_are_decodes_of_what_was_kept(row: Generation) -> None:
    def holds(decoded: Decoded) -> None:
        ids, by_id = decoded.raw.token_ids, decoded.finish in (Finish.EOS, Finish.STOP_TOKEN)
        assert ids == row.token_ids[: len(ids)]
        assert decoded.raw_text == row.tokenizer.decode(ids)
        skips = row.options.decode is not None and row.options.decode.skip_special_tokens
        hidden = set(row.tokenizer.special_tokens.values()) if skips else set()
        visible = row.tokenizer.decode(
            [token_id for token_id in (ids[:-1] if by_id else ids) if token_id not in hidden]
        )
        assert visible.startswith(decoded.text)
        assert decoded.finish in (Finish.STOP_STRING, Finish.PLUGIN) or decoded.text == visible
        assert len(decoded.text_ends) == len(decoded.raw_ends) == len(ids)
        assert [*decoded.text_ends] == sorted(decoded.text_ends)
        assert max(decoded.text_ends, default=0) <= len(decoded.text)
        assert max(decoded.raw_ends, default=0) <= len(decoded.raw_text)

    row.judged().map(holds)


@given(generations())
@example(_ending_with(("a<|im_end|>",), 97, 257))
@example(_ending_with((REPLACEMENT,), 0xC3, 257))
def test_nothing_ends_a_row_before_its_min_new_tokens(row: Generation) -> None:  # A19
    def holds(decoded: Decoded) -> None:
        first = row.options.min_new_tokens or 0
        assert len(decoded.raw.token_ids) > first or decoded.finish in (
            Finish.LENGTH,
            Finish.ABORTED,
        )
        blocked, counted = (
            set(ending_ids(row.options, row.tokenizer, row.eos_token_ids)),
            decoded.raw.token_ids[first:],
        )
        assert not set(counted[:-1]) & blocked
        # The last one may be such an id. The row then ends by it, or by a stop string or a plugin
        # that is complete with this same token.
        ends_at_id = bool(set(counted[-1:]) & blocked)
        assert ends_at_id or decoded.finish not in (Finish.EOS, Finish.STOP_TOKEN)
        assert not ends_at_id or decoded.finish not in (Finish.LENGTH, Finish.ABORTED)

    row.judged().map(holds)


@given(generations(watched=False))
def test_no_stop_that_counts_is_left_in_the_text(row: Generation) -> None:
    assume(row.options.min_new_tokens == 0)
    decoded, said = row.judged().unwrap(), row.options.stop
    for written in (said.stop or ()) if said is not None else ():
        assert (
            written in row.tokenizer.special_tokens
            or any(token in written for token in row.tokenizer.special_tokens)
            or written not in decoded.text
        )


@given(texts(), st.lists(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=3), st.data())
# A12, A5, A6
def test_the_text_does_not_depend_on_how_characters_were_grouped_into_tokens(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    expected = cut(text + stops[0], stops)
    options = resolve(GenerationOptions(max_new_tokens=4096, stop=tuple(stops)))
    tokenizer = data.draw(toy_tokenizers(*stops))
    row = Generation(
        tokenizer, options, (), tokenizer.encode_plain(text + stops[0], first=False), ()
    )
    decoded = row.judged().unwrap()
    assert (decoded.text, decoded.stop, decoded.finish) == (
        expected.text,
        expected.stop,
        Finish.STOP_STRING,
    )


@given(st.text("abc", min_size=1, max_size=12), st.sampled_from(["ab", "c", "bca"]))
def test_a13_the_stop_string_goes_before_the_length(text: str, written: str) -> None:  # A13
    end = cut(text + written, (written,)).end
    row = Generation(
        ToyTokenizer(),
        resolve(GenerationOptions(max_new_tokens=end, stop=(written,))),
        (),
        tuple((text + written).encode()),
        (),
    )
    assert row.judged().unwrap().finish is Finish.STOP_STRING


@given(generations(), st.booleans(), st.sampled_from([None, "criteria"]))
def test_how_an_engine_ended_a_row_counts_only_where_nothing_else_did(
    row: Generation, aborted: bool, ended_by_plugin: str | None
) -> None:
    follower = row.follower()
    shown = "".join(map(follower.feed, row.token_ids))
    assume(follower.finish is None)
    shown += follower.close(aborted=aborted, ended_by_plugin=ended_by_plugin)
    judged = row.judged(row.raw(aborted=aborted, ended_by_plugin=ended_by_plugin))
    if follower.failure is None:
        decoded = judged.unwrap()
        assert (follower.finish, follower.stop) == (decoded.finish, decoded.stop)
        assert trim_row(decoded, "route").unwrap().text == shown
    else:
        assert judged.failure() == follower.failure


@given(generations(watched=False))
def test_every_kept_token_keeps_its_logprob(row: Generation) -> None:
    logprobs = tuple(
        TokenLogprob(token_id=token_id, logprob=-float(place))
        for place, token_id in enumerate(row.token_ids)
    )
    raw = Raw(encoded=row.raw().encoded, token_ids=row.token_ids, logprobs=logprobs)
    kept = row.judged(raw).unwrap().raw
    assert kept.logprobs is not None
    assert [(one.token_id, one.logprob) for one in kept.logprobs] == [
        (one.token_id, one.logprob) for one in logprobs[: len(kept.token_ids)]
    ]
    assert all(one.text is not None for one in kept.logprobs)


@given(texts(), st.data())
def test_stripping_in_pieces_is_stripping(text: str, data: st.DataObject) -> None:
    stripper = Stripper()
    assert "".join(map(stripper.feed, data.draw(chunkings(text)))) == text.strip()


@given(
    st.lists(st.text("abc", max_size=3), max_size=6),
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=3),
)
def test_a_follower_shows_as_soon_as_the_scanner_does(pieces: list[str], stops: list[str]) -> None:
    row = Generation(
        ToyTokenizer(),
        resolve(GenerationOptions(max_new_tokens=4096, stop=tuple(stops))),
        (),
        tuple("".join(pieces).encode()),
        (),
    )
    follower, scanner = row.follower(), StopScanner(tuple(stops))
    for token_id in row.token_ids:
        assert follower.feed(token_id) == scanner.feed(chr(token_id)).text
