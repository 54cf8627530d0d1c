"""The one exception for what a user can mend: printed as a single line, without a traceback."""


class UserError(Exception):
    """Bad input. The message names the file or key, what was found and what is accepted."""
