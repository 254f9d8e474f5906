"""The scanner: stop strings found in a text that comes in pieces."""

from __future__ import annotations

import pytest

from pipegen.ending import stop_scan
from pipegen.ending.stop_scan import Scan, StopScanner


class TestStopScanner:
    def test_without_stops_it_passes_everything_on(self) -> None:
        scanner = StopScanner(())
        assert (scanner.feed("abc"), scanner.held) == (Scan("abc"), "")

    def test_it_holds_back_what_may_become_a_stop_and_no_more(self) -> None:
        scanner = StopScanner(("abab", "bc"))
        assert [scanner.feed(letter).text for letter in "xaba"] == ["x", "", "", ""]
        assert scanner.held == "aba"
        assert scanner.feed("d") == Scan("abad")

    def test_a_stop_inside_the_beginning_of_a_longer_one_completes_first(self) -> None:  # A12
        for pieces in (["abcd"], ["a", "b", "c", "d"], ["ab", "cd"]):
            scanner = StopScanner(("abcd", "bc"))
            assert ("".join(scanner.feed(piece).text for piece in pieces), scanner.stop) == (
                "a",
                "bc",
            )

    def test_after_a_stop_it_gives_nothing_more(self) -> None:
        scanner = StopScanner(("b",))
        seen = (scanner.feed("abc"), scanner.feed("abc"), scanner.held, scanner.stop)
        assert seen == (Scan("a", "b", 2), Scan(""), "", "b")

    def test_a_completion_that_does_not_count_is_released(self) -> None:  # A19
        scanner = StopScanner(("END",))
        seen = [scanner.feed("END", counts=False), scanner.feed("EN"), scanner.feed("D")]
        assert seen == [Scan("END"), Scan(""), Scan("", "END", 1)]

    def test_a_stop_begun_where_none_counts_may_complete_later(self) -> None:
        scanner = StopScanner(("ababc", "ab"))
        seen = (scanner.feed("abab", counts=False), scanner.held, scanner.feed("c"))
        assert seen == (Scan(""), "abab", Scan("", "ababc", 1))

    def test_what_is_remembered_and_how_long_pieces_are_changes_nothing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pieces = ("ab", "a", "bab", "c", "ab", "abab", "cab", "xabababxx", "ab")
        for stops in (("ababc", "ca"), ("bc",), ("abx", "xab"), ()):
            found = []
            for long, moves in ((1, 2), (1000, 2), (1000, 1000)):
                monkeypatch.setattr(stop_scan, "LONG", long)
                monkeypatch.setattr(stop_scan, "MOVES", moves)
                stop_scan._compile.cache_clear()
                for before in range(len(pieces)):
                    scanner = StopScanner(stops)
                    found.append([])
                    for place, piece in enumerate(pieces):
                        scan = scanner.feed(piece, counts=place >= before)
                        found[-1].append((scan, scanner.held, scanner.stop))
            third = len(found) // 3
            assert found[:third] == found[third : 2 * third] == found[2 * third :]

    def test_meeting_a_stop_is_what_feeding_finds(self) -> None:
        pieces = ("ab", "a", "bab", "c", "ab", "abab", "cab")
        for stops in (("ababc", "ca"), ("bc",), ()):
            meeting, feeding = StopScanner(stops), StopScanner(stops)
            for place, piece in enumerate(pieces):
                feeding.feed(piece, counts=place > 3)
                assert meeting.meets(piece, counts=place > 3) == feeding.stop

    def test_many_stops_and_a_long_text_take_one_step_per_character(self) -> None:
        stops = tuple("a" * length + "b" for length in range(1, 200))
        scanner = StopScanner(stops)
        assert scanner.feed("a" * 20_000).text == "a" * (20_000 - 199)
        assert scanner.feed("b") == Scan("", stops[-1], 1)

    def test_what_meets_a_stop_counts_unless_it_is_passed_over(self) -> None:
        scanner = StopScanner(("ab",))
        assert (scanner.meets("ab", counts=False), scanner.meets("ab")) == (None, "ab")
