"""Fixtures of the examples: they are run as a reader of the README would run them."""

from __future__ import annotations

from tests.local.conftest import box

__all__ = ["box"]
