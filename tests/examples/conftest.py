"""Fixtures of the examples: they are run as a reader of the README would run them."""

from __future__ import annotations

from tests.local.conftest import box, keeps_no_standbys

__all__ = ["box", "keeps_no_standbys"]
