"""Name the files and folders of a dataset that were not read, so that no image is dropped without a message."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from medfed.core.errors import UserError
from medfed.core.files import printable_path
from medfed.datasets import file_names, volume_headers

MAX_NAMED_FILES = 2  # examples for each kind of files


def describe_unread(root: Path, read: Iterable[Path], ignored_names: Sequence[str], documents: bool) -> list[str]:
    """Return one sentence for each folder inside `root` that holds something that was not read, in alphabetical order.

    A folder from which nothing was read is named as a whole; other files are grouped by folder and ending.

    Args:
        root: an existing folder.
        read: the files that were read, or that a problem names already; all files count in a folder that is named.
        ignored_names: patterns of names that the user wants to leave out.
        documents: whether text files, tables and other documents, which hold no image, are described.
    """
    known = set(read) | {data for path in read if (data := _data_file(path))}
    known_folders = {folder for path in known for folder in path.parents}

    def is_unread(path: Path) -> bool:
        """Whether a file was not read and is no document."""
        is_document = path.name.lower().endswith(file_names.NON_IMAGE_SUFFIXES)
        return path not in known and (documents or not is_document)

    items: dict[Path, list[str]] = {}
    for folder, folders, files in _walk(root, known, known_folders, ignored_names):
        for inner in folders:
            n_files = sum(map(is_unread, _files(inner, known, ignored_names)))
            if n_files:
                items.setdefault(folder, []).append(f"{inner.name}/ ({_count(n_files)})")
        by_ending: dict[str, list[str]] = {}
        for path in filter(is_unread, files):
            by_ending.setdefault(path.suffix.lower(), []).append(path.name)
        items.setdefault(folder, []).extend(_describe_files(ending, names) for ending, names in by_ending.items())
    return [
        f"{printable_path(folder)}: not read: {', '.join(parts)}" for folder, parts in sorted(items.items()) if parts
    ]


def _walk(
    folder: Path, known: Collection[Path], known_folders: Collection[Path], ignored_names: Sequence[str]
) -> Iterator[tuple[Path, list[Path], list[Path]]]:
    """Yield each folder from which something was read, its folders from which nothing was read, and its files."""
    file_names.check_depth(folder)
    inner = [path for path in sorted(folder.iterdir()) if not file_names.is_ignored(path, ignored_names)]
    folders = [path for path in inner if path.is_dir() and path not in known and not file_names.leads_back(path)]
    yield (
        folder,
        [path for path in folders if path not in known_folders],
        [path for path in inner if not path.is_dir() or file_names.leads_back(path)],
    )
    for path in folders:
        if path in known_folders:
            yield from _walk(path, known, known_folders, ignored_names)


def _files(folder: Path, known: Collection[Path], ignored_names: Sequence[str]) -> Iterator[Path]:
    """Yield the files in a folder and in the folders inside it that are neither known nor ignored."""
    file_names.check_depth(folder)
    for path in sorted(folder.iterdir()):
        if file_names.is_ignored(path, ignored_names) or path in known:
            continue
        if path.is_dir() and not file_names.leads_back(path):
            yield from _files(path, known, ignored_names)
        else:
            yield path


def _describe_files(ending: str, names: Sequence[str]) -> str:
    """Return files of the same ending as text, such as "3 .txt files (a.txt, b.txt, ...)"."""
    shown = ", ".join(ascii(name)[1:-1] if not name.isprintable() else name for name in names[:MAX_NAMED_FILES])
    if len(names) == 1:
        return shown
    return f"{len(names)} {ending or 'other'} files ({shown}{', ...' if len(names) > MAX_NAMED_FILES else ''})"


def _count(n: int) -> str:
    """Return a number of files as text, such as "3 files"."""
    return f"{n} file{'' if n == 1 else 's'}"


def _data_file(path: Path) -> Path | None:
    """Return the file with the voxels of an image (`volume_headers.data_file`); None if it cannot be found."""
    try:
        return volume_headers.data_file(path)
    except (OSError, UserError):  # reading the file reports it
        return None
