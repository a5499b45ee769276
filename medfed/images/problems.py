"""What a library raises about a file becomes one sentence with the path of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from medfed.core.errors import Problem, UserError


@contextmanager
def library_errors(path: Path, show_reason: bool = True) -> Iterator[None]:
    """Raise a Problem with the path if a library cannot read a file; its reason may hold values of a DICOM file."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # damaged files raise errors of many types in Pillow, nibabel, pydicom, SimpleITK
        reason = _reason(path, error) if show_reason else type(error).__name__
        found = f"the file is damaged, incomplete, of another format or not readable ({reason})"
        raise Problem("file that cannot be read", path, found, "copy it again from its source") from None


def _reason(path: Path, error: Exception) -> str:
    """Return the last line of an error, without the path and what SimpleITK writes around the reason."""
    lines = [line.strip() for line in str(error).replace(str(path), path.name).splitlines()]
    useful = [line for line in lines if line and not line.startswith("Reason: ")]
    return re.sub(r"^ITK ERROR: \w+\(\w+\): ", "", useful[-1]) if useful else type(error).__name__
