"""A failure the user can act on. It lives in the lowest room, so that every room can raise it."""

from __future__ import annotations

_EXIT_USAGE = 2


class UserError(Exception):
    """An error with a remedy; the command line prints it on one line and exits with `exit_code`."""

    def __init__(self, message: str, *, remedy: str = "", exit_code: int = _EXIT_USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}" if self.remedy else self.message
