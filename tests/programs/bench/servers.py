"""Requests to a server: how many a second, and what one costs the client, beside other clients, at
1 to 1,000 in flight. Run by `nox -s bench`.

`python tests/programs/bench/servers.py`, beside `stub_server.py`, which answers after 20 ms, always. Every
client has a process of its own; all are asked in turn, level by level.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import Any

from measure import REPEATS, RESULTS, paired, peaks, row, write
from workers import HERE, Worker, running

GROUP = "Servers"
LATENCY = 0.02
MOST = int(os.environ.get("BENCH_REQUESTS", "2000"))
LEVELS = (1, 16, 64, 256, 1_000)
FLOOR = "bare aiohttp"
OURS = (
    "pipegen's transport",
    "pipegen.vllm_server, token ids",
    "pipegen.vllm_server, messages",
    "pipegen.openai_server",
)
CLIENTS = ("httpx, no limits", "niquests", "pyreqwest", "pyqwest")
"""For the page's table alone, so asked once at each level."""
BESIDE_TORCH = "pipegen.vllm_server, token ids, beside torch"
"""For the page's table too: asked in the environment of this program, which has torch; transformers
imports it wherever it is.
"""
PEERS = {"AsyncOpenAI": 8.0, "AsyncOpenAI, aiohttp": 5.0, "renderers.client.generate": 8.0}


def requests_at(in_flight: int) -> int:
    return 30 if in_flight == 1 else min(MOST, max(200, 12 * in_flight))


def ask(worker: Worker, in_flight: int) -> dict[str, Any]:
    return worker.run(f"{in_flight} {requests_at(in_flight)}")


def measured(url: str) -> tuple[dict[str, dict[int, list[dict[str, Any]]]], dict[str, str]]:
    """What each client says of each level, once for each repeat."""
    clients = {**dict.fromkeys((FLOOR, *OURS, *PEERS, *CLIENTS), "online"), BESIDE_TORCH: None}
    with running(clients, {"url": url}, "clients.py", f"16 {requests_at(16)}") as (workers, absent):
        said: dict[str, dict[int, list[dict[str, Any]]]] = {
            worker.arm: {level: [] for level in LEVELS} for worker in workers
        }
        for level in LEVELS:
            for repeat in range(REPEATS):
                asked = [worker for worker in workers if not (repeat and worker.arm in CLIENTS)]
                for worker in asked if repeat % 2 else reversed(asked):
                    said[worker.arm][level].append(ask(worker, level))
    return said, absent


def table(said: dict[str, dict[int, list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """One entry for each client and level, for the page's own table."""
    entries = []
    for name, levels in said.items():
        for level, runs in levels.items():
            figures: dict[str, float] = {
                what: round(statistics.median(run[what] for run in runs), 6)
                for what in ("rate", "cpu", "p50", "p99")
                if what in runs[0]
            }
            entries.append(
                {"client": name, "in_flight": level, "peak": round(runs[-1]["peak"]), **figures}
            )
            print(
                f"  {name:<34}{level:>6} in flight {figures['rate']:>8.0f}/s"
                f" {figures['cpu'] * 1e6:>7.0f} us",
                flush=True,
            )
    return entries


def rows_of(
    said: dict[str, dict[int, list[dict[str, Any]]]], absent: dict[str, str]
) -> list[dict[str, Any]]:
    rows = []

    def held(ours: str, peer: str, level: int) -> dict[str, Any]:
        return peaks(said[ours][level][-1]["peak"], said[peer][level][-1]["peak"])

    def against(ours: str, peer: str, level: int, target: float) -> None:
        work = f"{ours}, {level:,} in flight"
        if ours in absent or peer in absent:
            rows.append(
                row(
                    work,
                    peer,
                    None,
                    f"at least {target:g}",
                    group=GROUP,
                    note=f"not measured: {absent.get(ours) or absent.get(peer)}",
                )
            )
            return
        mine, theirs = ([run["rate"] for run in said[name][level]] for name in (ours, peer))
        ratio, spread = paired(theirs, mine)
        costs = [
            statistics.median(run["cpu"] for run in said[name][level]) for name in (ours, peer)
        ]
        figures = {
            "ours": f"{statistics.median(mine):.0f}/s",
            "theirs": f"{statistics.median(theirs):.0f}/s",
            **held(ours, peer, level),
        }
        note = (
            f"client's processor time for a request: {costs[0] * 1e6:.0f} and"
            f" {costs[1] * 1e6:.0f} us"
        )
        most = level / LATENCY
        if target * statistics.median(theirs) > most:
            note += f"; no client gets more than {most:,.0f}/s of this server"
        rows.append(
            row(
                work,
                peer,
                ratio,
                f"at least {target:g}",
                group=GROUP,
                spread=spread,
                note=note,
                cpu_ratio=round(costs[1] / costs[0], 3),
                **figures,
            )
        )

    for level in (64, 256, 1_000):
        for ours in OURS:
            whole = ours != OURS[0]
            against(ours, FLOOR, level, 0.75 if whole and level > 64 else 0.85)
            for peer, target in PEERS.items():
                # no client of 64 gets 8 times a peer's speed of a server that takes 20 ms
                if level > 64 and (peer == "AsyncOpenAI" or not whole):
                    against(ours, peer, level, target)
        for ours in [ours for ours in OURS if not {ours, FLOOR} & absent.keys()]:
            added = [[run["p99"] - LATENCY for run in said[name][level]] for name in (ours, FLOOR)]
            ratio, spread = paired(added[1], added[0])
            figures = {
                "ours": f"{statistics.median(added[0]) * 1e3:.1f} ms",
                "theirs": f"{statistics.median(added[1]) * 1e3:.1f} ms",
            }
            figures |= held(ours, FLOOR, level)
            rows.append(
                row(
                    f"{ours}, {level:,} in flight: added to p99",
                    FLOOR,
                    ratio,
                    "at most 2",
                    group=GROUP,
                    spread=spread,
                    **figures,
                )
            )
    return rows


def main() -> None:
    server = subprocess.Popen(
        [sys.executable, str(HERE / "stub_server.py"), str(LATENCY)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(server.stdout.readline()) if server.stdout else 0
        said, absent = measured(f"http://127.0.0.1:{port}")
        rows = rows_of(said, absent)
        write("servers", rows)
        (RESULTS / "servers-levels.json").write_text(
            json.dumps(table(said), indent=1) + "\n", encoding="utf-8"
        )
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
