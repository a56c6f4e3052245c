"""Fixtures shared with the tests of shift and adaptation."""

from tests.adaptation.conftest import pool  # noqa: F401
from tests.shift.conftest import classes  # noqa: F401
