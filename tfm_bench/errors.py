"""The one exception for what a user can mend: printed as a single line, without a traceback."""

EXIT_TOOL_ERROR = 2  # of the regression gate, where 1 means a regression


class UserError(Exception):
    """Bad input. The message names the file or key, what was found and what is accepted."""
