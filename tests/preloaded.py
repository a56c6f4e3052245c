"""What the processes of `helpers.apart` have imported when they begin: what training needs, nothing with threads."""

from lookalike.core import compat
from lookalike.training import (
    setup,  # noqa: F401
)
from tests import helpers  # noqa: F401

compat.import_timm()
