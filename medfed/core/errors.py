"""The one exception that a user ever sees: a sentence to a colleague, without a traceback."""


class UserError(ValueError):
    """A mistake that the user can mend: which file or key, what was found, what was expected, what to try.

    The programs print it on one line and leave with exit code 2. Anything else that is raised is our mistake and
    keeps its traceback.
    """
