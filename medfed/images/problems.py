"""What a library raises about a file becomes one sentence with the path of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from medfed.core.errors import Problem, UserError


@contextmanager
def library_errors(path: Path) -> Iterator[None]:
    """Raise a Problem with the path and the library's reason if a library cannot read a file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # damaged files raise errors of about ten types in Pillow, nibabel and SimpleITK
        found = f"the file is damaged, incomplete, of another format or not readable ({reason(path, error)})"
        raise Problem("file that cannot be read", path, found, "copy it again from its source") from None


def reason(path: Path, error: Exception) -> str:
    """Return the last line of an error, without the path and what SimpleITK writes before the reason."""
    lines = str(error).replace(str(path), path.name).splitlines()
    useful = [line.strip() for line in lines if line.strip() not in ("", "Reason: Success")]
    return re.sub(r"^ITK ERROR: \w+\(\w+\): ", "", useful[-1]) if useful else type(error).__name__
