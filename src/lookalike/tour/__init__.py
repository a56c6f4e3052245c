"""What walks through the other rooms: the demo, the doctor, and migration of older files."""

from __future__ import annotations

# The functions carry their modules' names and are imported here at once, so that the function, and not
# the module Python binds on first import, keeps the name. Heavy imports happen inside them.
from lookalike.tour.demo import demo
from lookalike.tour.doctor import doctor
from lookalike.tour.migrate import migrate

__all__ = ["demo", "doctor", "migrate"]
