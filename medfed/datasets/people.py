"""Whose image it is, by a regular expression over file names (`data.patient_pattern`)."""

from __future__ import annotations

import re


def check_pattern(pattern: str | None) -> None:
    """Raise ValueError unless it is a regular expression with a group around what names the person, or None."""
    if pattern is None:
        return
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"patient_pattern '{pattern}' is no regular expression: {error}") from None
    if groups < 1:
        raise ValueError(f"patient_pattern '{pattern}' needs a (group) around what names the person")
