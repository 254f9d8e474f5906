"""The simulation of many replicas: what docs/contributing/simulation.md claims of it, on a small cluster."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("numpy")
PROGRAM = Path(__file__).parents[2] / "docs" / "examples" / "many_replicas.py"


@pytest.fixture(scope="module")
def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("many_replicas", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["many_replicas"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=[0, pytest.param(1, marks=pytest.mark.slow)])
def ratios(program: ModuleType, request: pytest.FixtureRequest) -> dict[str, dict[str, float]]:
    return dict(program.table(program.World(replicas=200, rows=4_000_000, seed=request.param)))


def test_no_rule_is_faster_than_the_ideal(ratios: dict[str, dict[str, float]]) -> None:
    assert min(ratio for row in ratios.values() for ratio in row.values()) > 0.99


def test_where_nothing_goes_wrong_all_rules_are_near_the_ideal(
    ratios: dict[str, dict[str, float]],
) -> None:
    even = ratios["nothing"]
    assert max(even["position"], even["key"], even["blocks of 64"]) < 1.06


def test_parts_by_place_are_uneven_where_lengths_are_and_keys_are_not(
    ratios: dict[str, dict[str, float]],
) -> None:
    skewed = ratios["lengths by place"]
    assert skewed["position"] > 2
    assert skewed["key"] < 1.1


def test_slow_replicas_hold_up_what_is_split_beforehand(
    ratios: dict[str, dict[str, float]],
) -> None:
    slow = ratios["3% at half speed"]
    assert min(slow["position"], slow["key"]) > 1.9
    assert slow["blocks of 64"] < slow["blocks of 256"] < slow["blocks of 4096"]
    assert slow["blocks of 64"] < 1.15


def test_a_replica_that_is_gone_costs_most_where_its_rows_are_its_own(
    ratios: dict[str, dict[str, float]],
) -> None:
    gone = ratios["0.5% gone"]
    assert min(gone["position"], gone["key"]) > 1.3
    assert gone["blocks of 64"] < 1.1


def test_with_all_of_these_blocks_win_then_keys_then_places(
    ratios: dict[str, dict[str, float]],
) -> None:
    every = ratios["all of these"]
    assert every["blocks of 64"] < every["key"] < every["position"]


@pytest.mark.parametrize(("rows", "enough"), [(16, 4), (64, 8), (256, 16)])
def test_an_engine_is_full_where_its_replica_holds_several_times_what_it_works_on(
    program: ModuleType, rows: int, enough: int
) -> None:
    shares = [
        program.occupancy(rows, times * program.IN_FLIGHT // rows) for times in (1, 2, enough)
    ]
    assert shares[0] < 0.3
    assert shares == sorted(shares)
    assert shares[-1] > 0.9


def test_one_reader_feeds_a_few_hundred_replicas(program: ModuleType) -> None:
    def ratio(replicas: int, rule: str) -> float:
        cluster = program.Cluster(
            program.World(replicas=replicas, rows=replicas * 4_000, reading=True)
        )
        return float(program.RULES[rule](cluster) / cluster.ideal)

    assert ratio(100, "blocks of 64") < 1.3
    assert ratio(1000, "blocks of 64") > 3
    assert 1.5 < ratio(1000, "key") < ratio(1000, "blocks of 64")


def test_the_same_seed_gives_the_same_times(program: ModuleType) -> None:
    world = replace(program.World(replicas=50, rows=200_000), deaths=5.0, gone=0.1, slow=0.2)
    for rule in program.RULES.values():
        assert rule(program.Cluster(world)) == rule(program.Cluster(world))


def test_every_row_is_worked_on_though_all_but_one_are_gone(program: ModuleType) -> None:
    cluster = program.Cluster(replace(program.World(replicas=4, rows=40_000), gone=0.75))
    assert program.stealing(cluster, 64, 32) > 1.5 * cluster.ideal
    gone = program.Cluster(replace(program.World(replicas=4, rows=40_000), gone=1.0))
    with pytest.raises(RuntimeError, match="all replicas are gone"):
        program.stealing(gone, 64, 32)
