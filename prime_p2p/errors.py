"""Errors a user sees: one line each, with the exit code the command line ends with."""


class PrimeError(Exception):
    """Something a user is told in one line: what is wrong, where, and what to do."""

    exit_code = 1


class BadInput(PrimeError):
    """A recipe, option, file or port that cannot be used as given."""

    exit_code = 2


class Unreachable(PrimeError):
    """Nobody answered at the addresses that were given."""

    exit_code = 3
