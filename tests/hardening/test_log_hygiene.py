"""R15: identifiers of patients in names, headers and notes occur in nothing that may leave a hospital."""

import base64
import binascii
import io
import logging
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from conftest import SMALL_UNET, UNET
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from medfed import audit, export, report, train
from medfed.federation.message import Message, failed_reply_to_error

pytestmark = [pytest.mark.hardening, pytest.mark.figures]
N_IDENTIFIERS, SITES = 30, ("north", "south", "west")
BY_CASE = {"cases.csv", "data.json", "clients.json"}  # files of a simulation that list the cases by name, on purpose
CONFIG = """
seed: 3
data: {{name: folder, root: {root}, image_size: 32, validation_ratio: 0.25, test_ratio: 0.25{more}}}
network: {network}
method: {{name: elcfs, alpha: 0.1, min_patients: 1, gamma: 0}}
training: {{batch_size: 8, learning_rate: 0.01}}
federation: {{unseen_site: west, rounds: 1}}
# notes of the hospital: {note}
"""


class Identifiers:
    """Hands out identifiers that occur nowhere else, and finds them again in data, also inside compressed data."""

    def __init__(self, rng) -> None:
        self.words = [f"CANARY{rng.randrange(10**9):09}" for _ in range(N_IDENTIFIERS)]
        self.unused = list(self.words)
        self._pattern = re.compile("|".join(self.words).encode(), re.IGNORECASE)

    def take(self) -> str:
        """Return an identifier that was not used yet, and after all were used, the last one."""
        return self.unused.pop(0) if len(self.unused) > 1 else self.unused[0]

    def find(self, data: bytes) -> set[str]:
        return {hit.decode().upper() for part in unpacked(data) for hit in self._pattern.findall(part)}


def unpacked(data: bytes, depth: int = 0) -> Iterator[bytes]:
    """Yield data, what is compressed or encoded in it, and its text in UTF-16 as UTF-8."""
    yield data
    yield data.replace(b"\0", b"")
    if depth == 3:
        return
    if data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                yield name.encode()
                yield from unpacked(archive.read(name), depth + 1)
    for match in re.finditer(rb"\x1f\x8b\x08|\x78[\x01\x9c\xda]", data):
        try:
            inner = zlib.decompressobj(47).decompress(data[match.start() :], 1 << 24)  # 47: gzip or zlib
        except zlib.error:
            continue
        yield inner
    for match in re.finditer(rb"base64,([A-Za-z0-9+/=]+)", data):
        try:
            yield from unpacked(base64.b64decode(match[1]), depth + 1)
        except binascii.Error:
            continue


def write_volumes(root: Path, words: Identifiers) -> str:
    rng = np.random.default_rng(0)
    for site in SITES:
        for _ in range(4):
            name = words.take()
            mask = np.zeros((16, 16, 3), np.uint8)
            mask[4:9, 5:11] = 1
            image = nib.Nifti1Image((rng.random(mask.shape) * 100 + 50 * mask).astype(np.float32), np.eye(4))
            image.header["descrip"] = words.take()
            for field in ("aux_file", "intent_name", "db_name"):
                image.header[field] = name
            for kind, volume in (("images", image), ("masks", nib.Nifti1Image(mask, np.eye(4)))):
                (root / site / kind).mkdir(parents=True, exist_ok=True)
                nib.save(volume, root / site / kind / f"{name}.nii.gz")
        (root / site / "notes.txt").write_text(words.take())
    return ""


def write_photographs(root: Path, words: Identifiers) -> str:
    rng = np.random.default_rng(0)
    for site in SITES:
        for _ in range(4):
            name, text, exif = words.take(), PngInfo(), Image.Exif()
            mask = np.zeros((40, 40), np.uint8)
            mask[10:25, 10:30] = 255
            text.add_text("Patient", name)
            text.add_text("Comment", name, zip=True)
            exif[0x010E] = words.take()  # the description of the image
            pixels = rng.integers(0, 200, (40, 40, 3), dtype=np.uint8)
            for kind in ("images", "masks"):
                (root / site / kind).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(root / site / "images" / f"{name}.png", pnginfo=text, exif=exif)
            Image.fromarray(mask).save(root / site / "masks" / f"{name}.png")
    return ", image_channels: 3, mask_values: {disc: [255]}, structure_names: [disc]"


WRITE = {"volumes": write_volumes, "photographs": write_photographs}


@pytest.mark.parametrize("kind", WRITE)
def test_r15_identifiers_of_patients(measurement, tmp_path, monkeypatch, capfd, recwarn, kind):
    words, log, messages = Identifiers(measurement.rng(kind)), io.StringIO(), []
    root = tmp_path / "hospitals"  # `data.root` is a setting, which config.yaml and the report show
    more = WRITE[kind](root, words)
    note = words.take()
    network = UNET if kind == "volumes" else SMALL_UNET
    (tmp_path / "config.yaml").write_text(CONFIG.format(root=root, more=more, network=network, note=note))
    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(log)])
    monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)
    to_bytes = Message.to_bytes
    monkeypatch.setattr(Message, "to_bytes", lambda self: messages.append(to_bytes(self)) or messages[-1])
    run, out = tmp_path / "out" / "run", tmp_path / "out"
    config = str(tmp_path / "config.yaml")
    assert train.main([config, "--out", str(run), "--device", "cpu"]) == 0
    assert report.main([str(run)]) == 0
    if kind == "volumes":
        assert export.main([str(run), "--out", str(out / "organ_segmentation"), "--force"]) == 0
    assert audit.main([config, "--out", str(out / "audit"), "--images", "1", "--gallery", "4"]) == 0
    image = next(root.rglob("images/*"))
    failed_reply_to_error(OSError(5, "Input/output error", str(image))).to_bytes()  # what a failing site would send
    capfd.readouterr()  # the last error is printed at the hospital, with the name of its file
    files = [path for path in out.rglob("*") if path.is_file()]
    seen = {path.relative_to(out).as_posix(): path.read_bytes() for path in files if path.name not in BY_CASE}
    seen |= {
        "messages": b"\n".join(messages),
        "log": log.getvalue().encode(),
        "names": "\n".join(seen).encode(),
        "warnings": "\n".join(str(warning.message) for warning in recwarn).encode(),
    }
    hits = {name: found for name, content in seen.items() if (found := words.find(content))}
    used = set(words.words) - set(words.unused)
    own = [path for path in (*root.rglob("*"), tmp_path / "config.yaml") if path.is_file()]
    planted = set().union(*(words.find(path.read_bytes()) | words.find(str(path).encode()) for path in own))
    in_cases = words.find((run / "cases.csv").read_bytes())
    measurement.report(
        f"{len(used)} identifiers in names, headers and notes of {kind}: {len(messages)} messages, log, and "
        f"{len(files)} files of a run, its report, bundle and audit, also decompressed",
        ("0 hits", f"{len(hits)} files with hits" + (f": {', '.join(sorted(hits)[:4])}" if hits else ""), not hits),
        (
            f"found in the hospital's own files {len(planted & used)} of {len(used)}, in cases.csv {len(in_cases)}",
            used <= planted and bool(in_cases),
        ),
    )
