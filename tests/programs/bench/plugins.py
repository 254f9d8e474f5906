"""What plugins cost beside decoding: ratios, measured in turn in one run. Run by `nox -s bench`, or
as `python tests/programs/bench/plugins.py`.

The embedded model decodes a row, and each plugin is given 4,096 tokens as an engine gives them; the
time of the processor that it takes is put beside the time that the model takes for as many, from
what a row of 256 takes; a longer row takes no less for a token. Each ratio is the median of the
rounds. The aim is less than 2%.
"""

from __future__ import annotations

import statistics

from measure import REPEATS, paired, peaks, row, write
from plugin_arms import DECODED, DECODING, PLUGINS, TOKENS
from workers import race


def main() -> None:
    taken, _, absent = race([DECODING, *PLUGINS], {"threads": 1}, REPEATS, "plugin_arms.py")
    if absent:
        raise RuntimeError(absent)
    decoding, peer = (
        [seconds * TOKENS / DECODED for seconds in taken[DECODING].cpu],
        f"{TOKENS:,} tokens decoded by the embedded model",
    )
    rows = []
    for name in PLUGINS:
        share, spread = paired(decoding, taken[name].cpu)
        figures = {
            "ours": f"{statistics.median(taken[name].cpu) * 1e3:.0f} ms",
            "theirs": f"{statistics.median(decoding):.2f} s",
        }
        figures |= peaks(taken[name].peak, taken[DECODING].peak)
        rows.append(
            row(name, peer, share, "at most 0.02", group="Plugins", spread=spread, **figures)
        )
    write("plugins", rows)


if __name__ == "__main__":
    main()
