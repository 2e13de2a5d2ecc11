"""The base of every error that its reader can repair."""


class UserError(Exception):
    """The message is a sentence with the cause and the fix. The command line prints it and ends with `exit_code`."""

    exit_code = 2
