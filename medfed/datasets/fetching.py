"""Download one file: completely or not at all, with its checksum verified (by pooch)."""

from __future__ import annotations

import os
import re
from pathlib import Path

from medfed.cli.progress import ProgressBar
from medfed.core.errors import UserError

TIMEOUT_S = 30  # without a byte from the server
CHUNK_BYTES = 1 << 16
N_RETRIES = 2  # after a broken connection or a wrong checksum
SCHEMES = ("https://", "http://", "doi:")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_DOI_OF_A_FILE = re.compile(r"doi:[^/]+/[^/]+/.+")


def download(url: str, target: Path, sha256: str | None = None, quiet: bool = False) -> str:
    """Download a file to `target` and return its SHA-256.

    The content goes to a temporary file in the target's folder first. The temporary file is renamed to `target` after
    its checksum was verified, and is deleted if anything fails.

    Args:
        url: an address that begins with `https://` or `http://`, or the DOI of a file in a data repository such as
            Zenodo, as `doi:DOI/FILE_NAME`. Upper and lower case of `https`, `http` and `doi` are not distinguished.
        target: path of the file to create. Missing folders are created.
        sha256: expected SHA-256 of the content as 64 hexadecimal digits; None accepts any content.
        quiet: True shows no progress bar.

    Returns:
        The SHA-256 of the downloaded content, as 64 lower-case hexadecimal digits.

    Raises:
        UserError: if `target` exists or cannot be written, if `sha256` does not have 64 hexadecimal digits, if the
            address has another scheme or cannot be downloaded, or if the content has another SHA-256.
    """
    from requests import RequestException  # imported here because few programs download

    scheme, colon, address = url.partition(":")
    url = f"{scheme.lower()}{colon}{address}"
    if not url.startswith(SCHEMES):
        raise UserError(f"{url}: expected an address that begins with {', '.join(SCHEMES[:-1])} or {SCHEMES[-1]}")
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise UserError(f"{url}: expected a SHA-256 of 64 hexadecimal digits, got {sha256!r}")
    if url.startswith("doi:") and not _DOI_OF_A_FILE.fullmatch(url):
        raise UserError(f"{url}: expected the DOI and the name of a file, such as doi:10.5281/zenodo.123/images.zip")
    try:
        return _fetch(url, target, sha256, quiet)
    except UserError:
        raise
    except ValueError as error:  # the checksum differs, or the address leads to no file that pooch can download
        advice = "check the address, and the SHA-256 if you gave one"
        raise UserError(f"{url}: {str(error).rstrip('.')}; {advice}") from None
    except RequestException as error:
        advice = "check the connection, or download the file by hand"
        raise UserError(f"{url}: the download failed ({error}); {advice}") from None
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror or error}; choose another path") from None


def _fetch(url: str, target: Path, sha256: str | None, quiet: bool) -> str:
    """Download a file with pooch and return its SHA-256."""
    import pooch  # imported here because it takes a tenth of a second and few programs download

    if target.exists():
        raise UserError(f"{target}: exists already; remove the file to download it again")
    pooch.get_logger().setLevel("WARNING")
    registry, urls = {target.name: sha256}, {target.name: url}
    files = pooch.create(target.parent, base_url="", registry=registry, urls=urls, retry_if_failed=N_RETRIES)
    # pooch takes a progress bar whose truth value is True, so the total is 1 until the server has sent the size.
    with ProgressBar(total=1, desc=target.name, unit="B", unit_scale=True, disable=quiet) as bar:
        downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK_BYTES, timeout=TIMEOUT_S)
        if url.startswith("doi:"):
            downloader = pooch.DOIDownloader(progressbar=bar, chunk_size=CHUNK_BYTES, timeout=TIMEOUT_S)
        files.fetch(target.name, downloader=downloader)
    umask = os.umask(0)
    os.umask(umask)
    target.chmod(0o666 & ~umask)  # pooch leaves the permissions of a temporary file, which only its owner can read
    return pooch.file_hash(str(target), alg="sha256")
