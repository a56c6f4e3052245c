"""Duplicates: look for them, go through them, move copies away and back."""

from __future__ import annotations

from fastapi import APIRouter

router = APIRouter(prefix="/api/v1", tags=["duplicates"])
