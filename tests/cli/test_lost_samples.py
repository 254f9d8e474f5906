"""Samples that fail beside others on the command line: the line keeps the others, and the run says
so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pipegen as pg
from pipegen.cli.app import app
from pipegen.records.results import Encoded
from pipegen.testing.fake import FakeEngine


def test_lost_samples_are_told_in_the_line_in_the_summary_and_by_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_breaks(encoded: Encoded) -> Any:
        return pg.BackendFailed("no", scope="row") if encoded.options.seed == 7 else "yes"

    monkeypatch.setattr(
        "pipegen.cli.generate.open_routes", lambda load: pg.route(FakeEngine(first_breaks))
    )
    (tmp_path / "in.jsonl").write_text(
        '{"prompt": "Hi"}\n{"prompt": "Hi", "options": {"seed": 8}}\n'
    )
    done = CliRunner().invoke(
        app,
        ["generate", str(tmp_path / "in.jsonl"), "--model", "m", "--samples", "2", "--seed", "7"],
    )
    assert done.exit_code == 1
    line, whole = (json.loads(line) for line in done.stdout.splitlines())
    assert (line["ok"], line["text"], len(line["samples"])) == (True, "yes", 1)
    assert [(one["sample"], one["error"]["message"]) for one in line["failed_samples"]] == [
        (0, "no")
    ]
    assert (whole["failed_samples"], len(whole["samples"])) == ([], 2)
    assert "2 requests" in done.stderr
    assert "2 succeeded, 0 failed" in done.stderr
    assert "1 sample failed beside others that succeeded" in done.stderr
