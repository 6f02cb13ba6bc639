"""Failures a user can act on: one line that names what is at fault, and the remedy."""

from __future__ import annotations

EXIT_INVALID = 1
EXIT_USAGE = 2
EXIT_ENDPOINT = 3
EXIT_INTERRUPTED = 130


class UserError(Exception):
    """An error with a remedy; the command line prints it on one line and exits with `exit_code`."""

    def __init__(self, message: str, *, remedy: str = "", exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message
