"""Failures a user can act on: one line that names what is at fault, and the remedy."""

from __future__ import annotations

from hardware.errors import UserError

__all__ = ["EXIT_ENDPOINT", "EXIT_INTERRUPTED", "EXIT_INVALID", "EXIT_USAGE", "UserError"]

EXIT_INVALID = 1
EXIT_USAGE = 2
EXIT_ENDPOINT = 3
EXIT_INTERRUPTED = 130
