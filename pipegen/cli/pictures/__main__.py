"""Draw the demo's pictures anew, beside this file."""

from __future__ import annotations

from pathlib import Path

from pipegen.cli.pictures import write_all

if __name__ == "__main__":
    write_all(Path(__file__).resolve().parent)
