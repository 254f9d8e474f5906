"""A cluster of Ray on loopback, with more logical CPUs than there may be: `nox -s ray`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of the cluster, to which this process is connected."""
    import ray
    import ray.data

    context = ray.init(
        "local",
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=200 * 2**20,
        logging_level="ERROR",
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    data = ray.data.DataContext.get_current()
    data.enable_progress_bars = False
    data.execution_options.preserve_order = True
    yield context.address_info["gcs_address"]
    with contextlib.suppress(Exception):
        ray.shutdown()
