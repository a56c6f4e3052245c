"""AGS: one number for a whole curve, the area under a measure over the shift."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lookalike.core.errors import LookalikeError


def ags(fids: Sequence[float], values: Sequence[float]) -> float:
    """Trapezoid area of the values over FID, stretched so that the first split lies at 0 and the last at 1.

    The supplement does not spell it out; this is what gives the paper's own table (docs/decisions/0113). It depends
    on the range of FID: compare it within one file of splits only.
    """
    x, y = np.asarray(fids, np.float64), np.asarray(values, np.float64)
    if len(x) != len(y) or len(x) < 2:
        raise LookalikeError(f"AGS needs as many values as FIDs, at least 2: there are {len(y)} and {len(x)}.")
    if not (np.diff(x) > 0).all():
        raise LookalikeError("AGS needs splits of rising FID.")
    return float(np.trapezoid(y, (x - x[0]) / (x[-1] - x[0])))
