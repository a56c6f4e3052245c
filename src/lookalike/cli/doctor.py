"""`lookalike doctor`."""

from __future__ import annotations

import textwrap

from lookalike.cli.verb import Answer, verb


@verb
def doctor() -> Answer:
    """What is installed, what is missing and how to get it."""
    from lookalike import doctor as station
    from lookalike.core.errors import Exit

    health = station.doctor()
    width = max(len(part.name) for part in health.parts)
    lines = [
        f"{part.state:<8}{part.name:<{width}}  " + " · ".join(text for text in (part.what, part.cost, part.how) if text)
        for part in health.parts
    ]
    lines += ["", *textwrap.wrap(health.license, 110), "", "Next: lookalike demo"]
    return Answer(health, lines, asked=True, code=Exit.OK if health.ok else Exit.FAILED)
