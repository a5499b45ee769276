"""The exceptions that a user sees: sentences without a traceback."""

from collections.abc import Iterable


class UserError(ValueError):
    """A mistake that the user can correct: which file or key, what was found, what was expected, what to do.

    The programs print the message on one line and end with exit code 2. Every other exception is a mistake of medfed
    and keeps its traceback. In a message, `--out` is the flag of a program and the argument `out` of a function.
    """

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences of the error message, one for each mistake; only the subclass UserErrors has more than one."""
        return (str(self),)


class Problem(UserError):
    """What is wrong with a file, a folder or a site; it can be raised, or listed with others and grouped by `kind`.

    Args:
        kind: a few words that all problems with the same cause share, such as "mask of another size".
        place: the file, folder or site.
        found: what was found there, and what was expected.
        cure: what to do; "" if `found` says it.
    """

    def __init__(self, kind: str, place: object, found: str, cure: str) -> None:
        super().__init__(kind, str(place), found, cure)
        self.kind, self.place, self.found, self.cure = self.args

    def __str__(self) -> str:
        sentence = f"{self.place}: {self.found}" if self.place else self.found
        return f"{sentence}; {self.cure}" if self.cure else sentence

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Problem) and self.args == other.args

    def __hash__(self) -> int:
        return hash(self.args)


class WorkerBug(RuntimeError):
    """A worker process failed because of a mistake of medfed or of a user's method, not of a user's settings.

    The worker has printed the traceback, so the programs print only the message, and end with exit code 1.
    """


MAX_SENTENCES = 50  # of one error; a list of 10,000 wrong entries would fill the terminal


class UserErrors(UserError):
    """Several mistakes of a user, such as all mistakes in one config file. The programs print one line for each."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self._sentences = tuple(sentences)
        if (n_more := len(self._sentences) - MAX_SENTENCES) > 0:
            self._sentences = (*self._sentences[:MAX_SENTENCES], f"and {n_more:,} more mistakes of this kind")
        super().__init__(self._sentences)

    def __str__(self) -> str:
        return "\n".join(self._sentences)

    @property
    def sentences(self) -> tuple[str, ...]:
        return self._sentences


def is_out_of_memory(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text
