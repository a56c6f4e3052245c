"""What the processes of `helpers.apart` have imported when they begin: what training needs, nothing with threads."""

from lookalike.core import imports
from lookalike.training import (
    setup,  # noqa: F401
)
from tests import helpers  # noqa: F401

imports.import_timm()
