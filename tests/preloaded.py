"""What processes begin with that are copied (`helpers.apart`, `tests.kill_commands`): imports alone, and no threads."""

import lightning_fabric  # noqa: F401

from lookalike.adaptation import t3ar  # noqa: F401
from lookalike.core import imports
from lookalike.methods import pml_methods  # noqa: F401
from lookalike.training import (
    loop,  # noqa: F401
    report,  # noqa: F401
    selection,  # noqa: F401
    setup,  # noqa: F401
)
from tests import helpers  # noqa: F401

imports.import_timm()
imports.import_openvino()
