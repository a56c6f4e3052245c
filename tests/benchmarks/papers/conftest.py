"""Fixtures shared with the tests of shift."""

from tests.shift.conftest import classes  # noqa: F401
