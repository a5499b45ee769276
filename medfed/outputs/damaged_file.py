"""One sentence for every way in which a file of a run cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from medfed.core.errors import UserError


@contextmanager
def damaged_file(path: Path) -> Iterator[Path]:
    """Context manager: turn the errors of reading a missing or damaged file of a run into a UserError with its path."""
    try:
        yield path
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{path}: the file is missing; copy the whole folder of the run again") from error
    except Exception as error:  # of any library
        raise UserError(
            f"{path}: the file cannot be read ({type(error).__name__}: {error}); copy the whole folder of the run again"
        ) from error
