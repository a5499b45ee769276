"""The exceptions that a user sees: sentences without a traceback."""

from collections.abc import Iterable


class UserError(ValueError):
    """A mistake that the user can correct: which file or key, what was found, what was expected, what to do.

    The programs print the message on one line and end with exit code 2. Every other exception is a mistake of medfed
    and keeps its traceback.
    """

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences of the error message, one for each mistake; only the subclass UserErrors has more than one."""
        return (str(self),)


class UserErrors(UserError):
    """Several mistakes of a user, such as all mistakes in one config file. The programs print one line for each."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self._sentences = tuple(sentences)
        super().__init__("\n".join(self._sentences))

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences of the error message, one for each mistake."""
        return self._sentences
