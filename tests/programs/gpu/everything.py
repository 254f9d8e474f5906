"""All measurements on this machine's device, one after the other, each in a process of its own:
`python tests/programs/gpu/everything.py [NAME ...]`.

Run by `nox -s gpu`. It takes at most `MOST` seconds in all; what is not done by then is reported. The
lines go to `.bench/gpu.md`, from which the page of benchmarks is made. The exit code is 1 where
something is not as it has to be.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from device import model_folder, name, on_gpu
from measure import write_table

MOST = 8 * 60
NAMES = ("parity", "passes", "skewed", "memory", "shared")


def one(program: str, folder: str) -> None:
    """Run one program, and print its lines as JSON."""
    from programs import PROGRAMS

    print("\n" + json.dumps(PROGRAMS[program](model_folder(Path(folder)))))


def main(chosen: list[str]) -> int:
    unknown = sorted({*chosen} - {*NAMES})
    if unknown:
        print(f"there is no {', '.join(unknown)}: take some of {', '.join(NAMES)}")
        return 2
    began, cells, failed = time.monotonic(), list[tuple[str, str, str]](), False
    with tempfile.TemporaryDirectory() as scratch:
        for program in chosen or NAMES:
            left = MOST - (time.monotonic() - began)
            try:
                command = [sys.executable, __file__, "--one", program, f"{scratch}/model"]
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=max(left, 1), check=False
                )
                lines = (
                    json.loads(done.stdout.splitlines()[-1])
                    if not done.returncode
                    else [(program, f"failed: {done.stderr.strip()[-300:]}", False)]
                )
            except subprocess.TimeoutExpired:
                lines = [(program, f"not done in {MOST} s", False)]
            failed = failed or any(right is False for _, _, right in lines)
            cells += [
                (what, figure, {True: "yes", False: "NO", None: ""}[right])
                for what, figure, right in lines
            ]
    write_table(
        "gpu" if on_gpu() else "gpu-small",
        f"On a GPU: {name()}",
        ("what", "figure", "as it has to be"),
        cells,
    )
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:4])
    else:
        sys.exit(main(sys.argv[1:]))
