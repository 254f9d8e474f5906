"""A cut text is a prefix that holds no stop; cutting twice, the order of stops and the split into
pieces change nothing; only text that may become a stop is held back.
"""

from __future__ import annotations

from hypothesis import given, strategies as st

from pipegen.ending.stop_scan import StopScanner, cut
from pipegen.testing.texts import chunkings, planted_texts, stop_tuples, texts


def by_definition(
    text: str, stops: tuple[str, ...], after: int = 0
) -> tuple[str, str | None, int | None]:
    """The rule in its own words: go through the text, and look what has just been completed."""
    for end in range(after + 1, len(text) + 1):
        completed = [stop for stop in stops if text[:end].endswith(stop)]
        if completed:
            longest = max(completed, key=len)
            return text[: end - len(longest)], longest, end
    return text, None, None


def scanned(
    pieces: list[str], stops: tuple[str, ...], passed_over: int = 0
) -> tuple[str, str | None]:
    scanner = StopScanner(stops)
    shown = "".join(
        scanner.feed(piece, counts=place >= passed_over).text for place, piece in enumerate(pieces)
    )
    return shown + scanner.held, scanner.stop


@given(planted_texts(), st.integers(0, 12))
def test_cut_is_the_rule(planted: tuple[str, tuple[str, ...]], after: int) -> None:
    text, stops = planted
    assert cut(text, stops, after=after) == by_definition(text, stops, after)


@given(planted_texts())
def test_the_cut_text_is_a_prefix_and_the_stop_follows_it(
    planted: tuple[str, tuple[str, ...]],
) -> None:
    text, stops = planted
    kept, stop, end = cut(text, stops)
    assert text.startswith(kept + (stop or ""))
    assert (stop is None) == (end is None) == (kept == text)
    assert end is None or end == len(kept) + len(stop or "")


@given(planted_texts())
def test_cutting_again_changes_nothing(planted: tuple[str, tuple[str, ...]]) -> None:
    text, stops = planted
    kept = cut(text, stops).text
    assert cut(kept, stops) == (kept, None, None)


@given(planted_texts())
def test_no_stop_is_left_in_the_text(planted: tuple[str, tuple[str, ...]]) -> None:
    text, stops = planted
    assert not any(stop in cut(text, stops).text for stop in stops)


@given(planted_texts(), st.data())
def test_the_order_of_the_stops_and_their_repetition_are_irrelevant(
    planted: tuple[str, tuple[str, ...]], data: st.DataObject
) -> None:
    text, stops = planted
    shuffled = tuple(data.draw(st.permutations(stops + stops[:1])))
    assert cut(text, shuffled) == cut(text, stops)
    assert scanned([text], shuffled) == scanned([text], stops)


@given(planted_texts(min_stops=1), texts())
def test_more_text_after_a_stop_changes_nothing(
    planted: tuple[str, tuple[str, ...]], more: str
) -> None:
    text, stops = planted
    text += stops[0]
    assert cut(text + more, stops) == cut(text, stops)
    scanner = StopScanner(stops)
    before = scanner.feed(text)
    assert (scanner.feed(more).text, scanner.held, scanner.stop) == ("", "", before.stop)


@given(planted_texts(), st.data())
def test_any_chunking_gives_what_cut_gives(
    planted: tuple[str, tuple[str, ...]], data: st.DataObject
) -> None:
    text, stops = planted
    assert scanned(data.draw(chunkings(text)), stops) == cut(text, stops)[:2]


@given(st.data())
def test_a12_the_stop_that_completes_first_wins_in_any_grouping(data: st.DataObject) -> None:  # A12
    assert scanned(data.draw(chunkings("abcd")), ("abcd", "bc")) == ("a", "bc")


@given(planted_texts(), st.data())
# A19
def test_a19_completions_in_pieces_that_do_not_count_are_passed_over(
    planted: tuple[str, tuple[str, ...]], data: st.DataObject
) -> None:
    text, stops = planted
    pieces = data.draw(chunkings(text))
    passed_over = data.draw(st.integers(0, len(pieces)))
    assert (
        scanned(pieces, stops, passed_over)
        == cut(text, stops, after=len("".join(pieces[:passed_over])))[:2]
    )


@given(planted_texts(), st.data())
def test_the_scanner_holds_back_exactly_what_may_still_become_a_stop(
    planted: tuple[str, tuple[str, ...]], data: st.DataObject
) -> None:
    text, stops = planted
    scanner, seen, shown = StopScanner(stops), "", ""
    counts = data.draw(st.booleans())
    for piece in data.draw(chunkings(text)):
        scan = scanner.feed(piece, counts=counts)
        seen, shown = seen + piece, shown + scan.text
        if scan.stop is not None:
            assert seen[: len(shown) + len(scan.stop)] == shown + scan.stop
            break
        beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
        may_become_one = next(
            (seen[start:] for start in range(len(seen)) if seen[start:] in beginnings), ""
        )
        assert (shown, scanner.held) == (seen[: len(seen) - len(may_become_one)], may_become_one)


@given(planted_texts(min_stops=1), st.data())
def test_the_scanner_says_where_in_the_piece_the_stop_ends(
    planted: tuple[str, tuple[str, ...]], data: st.DataObject
) -> None:
    text, stops = planted
    scanner, seen = StopScanner(stops), 0
    for piece in data.draw(chunkings(text + stops[0])):
        scan = scanner.feed(piece)
        if scan.end is not None:
            assert seen + scan.end == cut(text + stops[0], stops).end
            return
        seen += len(piece)
    raise AssertionError("a stop was planted")


@given(texts(), stop_tuples(min_size=1))
def test_text_without_a_stop_comes_out_whole(text: str, stops: tuple[str, ...]) -> None:
    absent = tuple(stop for stop in stops if stop not in text)
    assert cut(text, absent) == (text, None, None)
    assert scanned(list(text), absent) == (text, None)
