"""For every law: how tests begin."""

from support.profiles import pytest_collection_finish, pytest_configure

__all__ = ["pytest_collection_finish", "pytest_configure"]
