"""A job is killed (SIGKILL) in the middle of tool loops: what was finished is not asked again, and
the rows are the same bytes. `nox -s kills` does so with more rows and kills.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("aiohttp")


@pytest.mark.slow
def test_kills_in_the_middle_of_tool_loops_repeat_nothing_that_was_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)  # the killed processes look there too
    kills = importlib.import_module("kills")
    # what a killed process would import each time: that takes longer than its work
    kills.PROCESSES.set_forkserver_preload(
        [
            *("pipegen.jobs.runner", "pipegen.backends.servers.server", "aiohttp"),
            *("torch", "transformers.modeling_utils", "transformers.image_processing_backends"),
            "transformers.models.auto.image_processing_auto",
        ]
    )
    figures = kills.kill("loops", rows=9, kills=2, seed=0)
    assert figures["kills"] >= 1 and figures["finished before a kill"] > 9
    assert (figures["lost"], figures["doubled"]) == (0, 0)
    assert figures["finished, and asked again"] == 0
    assert figures["the same bytes"]
