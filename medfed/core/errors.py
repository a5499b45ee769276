"""The only exception that a user sees: its message is one sentence, printed without a traceback."""


class UserError(ValueError):
    """A mistake that the user can correct, such as a wrong config key or a damaged file.

    The message is one sentence: which file or key, what was found, what was expected, and what to do. The programs
    print it on one line and exit with code 2. Any other exception is a bug of medfed and keeps its traceback.
    """
