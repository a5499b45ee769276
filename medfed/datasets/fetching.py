"""Download one file: completely or not at all, with its checksum verified (by pooch)."""

from __future__ import annotations

import os
from pathlib import Path

from tqdm import tqdm

from medfed.core.errors import UserError

TIMEOUT_S = 30  # without a byte from the server
CHUNK_BYTES = 1 << 16
N_RETRIES = 2  # after a broken connection or a wrong checksum
SCHEMES = ("https://", "http://", "doi:")


def download(url: str, target: Path, sha256: str | None = None, quiet: bool = False) -> str:
    """Download a file to `target` and return its SHA-256.

    The content goes to a temporary file in the target's folder first. The temporary file is renamed to `target` after
    its checksum was verified, and is deleted if anything fails.

    Args:
        url: an address that begins with `https://` or `http://`, or the DOI of a file in a data repository such as
            Zenodo, as `doi:DOI/FILE_NAME`.
        target: path of the file to create. Missing folders are created.
        sha256: expected SHA-256 of the content as 64 hexadecimal digits; None accepts any content.
        quiet: True shows no progress bar.

    Returns:
        The SHA-256 of the downloaded content, as 64 lower-case hexadecimal digits.

    Raises:
        UserError: if `target` exists, if the address has another scheme or cannot be downloaded, or if the content
            does not have the expected checksum.
    """
    import pooch  # imported here because it takes a tenth of a second and few programs download
    from requests import RequestException

    if target.exists():
        raise UserError(f"{target}: exists already; remove the file to download it again")
    if not url.startswith(SCHEMES):
        raise UserError(f"{url}: expected an address that begins with {', '.join(SCHEMES[:-1])} or {SCHEMES[-1]}")
    pooch.get_logger().setLevel("WARNING")
    registry, urls = {target.name: sha256}, {target.name: url}
    files = pooch.create(target.parent, base_url="", registry=registry, urls=urls, retry_if_failed=N_RETRIES)
    # pooch takes a progress bar whose truth value is True, so the total is 1 until the server has sent the size.
    with tqdm(total=1, desc=target.name, unit="B", unit_scale=True, disable=quiet, dynamic_ncols=True) as bar:
        downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK_BYTES, timeout=TIMEOUT_S)
        if url.startswith("doi:"):
            downloader = pooch.DOIDownloader(progressbar=bar, chunk_size=CHUNK_BYTES, timeout=TIMEOUT_S)
        try:
            files.fetch(target.name, downloader=downloader)
        except RequestException as error:
            raise UserError(
                f"{url}: the download failed ({error}); check the connection, or download the file by hand"
            ) from None
        except ValueError as error:  # a wrong checksum, or a DOI that leads to no known repository
            raise UserError(f"{url}: {str(error).rstrip('.')}; try again") from None
    umask = os.umask(0)
    os.umask(umask)
    target.chmod(0o666 & ~umask)  # pooch leaves the permissions of a temporary file, which only its owner can read
    return pooch.file_hash(str(target), alg="sha256")
