"""For every law: the profiles of hypothesis."""

from support.profiles import pytest_configure

__all__ = ["pytest_configure"]
