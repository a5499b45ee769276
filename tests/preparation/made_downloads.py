"""Small copies of the original downloads, in the folders and formats of their owners."""

import locale
from pathlib import Path

import numpy as np
import SimpleITK as sitk
from PIL import Image


def gland(shape: tuple[int, int, int], value: int = 1) -> np.ndarray:
    """A box in the middle of a volume (Z, Y, X), off the centre in each axis, with label `value`."""
    mask = np.zeros(shape, np.uint8)
    mask[1:-1, 5:10, 4:12] = value
    return mask


def noise(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, 1000, shape).astype(np.int16)


def volume(voxels: np.ndarray, spacing: tuple[float, ...] = (0.6, 0.6, 3.0), origin=(10.0, -20.0, 5.0)) -> sitk.Image:
    image = sitk.GetImageFromArray(voxels)
    image.SetSpacing(spacing)
    image.SetOrigin(origin)
    return image


def promise12(root: Path, numbers: tuple[int, ...], without_mask: tuple[int, ...] = ()) -> Path:
    root.mkdir(parents=True)
    for number in (*numbers, *without_mask):
        sitk.WriteImage(volume(noise((4, 16, 16), number)), root / f"Case{number:02d}.mhd")
        if number in numbers:
            sitk.WriteImage(volume(gland((4, 16, 16)).astype(np.int8)), root / f"Case{number:02d}_segmentation.mhd")
    return root


def dicom_series(folder: Path, voxels: np.ndarray, uid: str, skip: tuple[int, ...] = (), first_z: float = 5.0) -> None:
    """One DICOM series with 3 mm between the slices; the slices in `skip` are missing."""
    folder.mkdir(parents=True)
    writer = sitk.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    for index in range(len(voxels)):
        if index in skip:
            continue
        image = sitk.GetImageFromArray(voxels[index].astype(np.int16))
        image.SetSpacing((0.6, 0.6))
        tags = {
            "0008|0060": "MR",
            "0008|0016": "1.2.840.10008.5.1.4.1.1.4",
            "0020|000e": uid,
            "0020|000d": uid + ".9",
            "0008|0018": f"{uid}.{index + 1}",
            "0020|0013": str(index + 1),
            "0018|0050": "3",
            "0020|0032": f"10\\-20\\{first_z + 3 * index}",
            "0020|0037": "1\\0\\0\\0\\1\\0",
        }
        for tag, value in tags.items():
            image.SetMetaData(tag, value)
        writer.SetFileName(str(folder / f"slice{len(voxels) - index:02d}.dcm"))  # names in the opposite order
        before = locale.setlocale(locale.LC_ALL)
        writer.Execute(image)
        locale.setlocale(locale.LC_ALL, before)  # GDCM leaves "C", so that later tests would write ASCII files


def nci_isbi(root: Path) -> Path:
    """Three patients: a usual one, one with a renamed mask, and one whose mask has fewer slices than its image."""
    cases = (("Prostate3T-01-0001", ""), ("ProstateDx-01-0006", "_correctedLabels"), ("ProstateDx-01-0055", ""))
    (root / "Training").mkdir(parents=True)
    for index, (patient, ending) in enumerate(cases):
        collection = "Prostate-3T" if "3T" in patient else "PROSTATE-DIAGNOSIS"
        study = root / "manifest-1" / collection / patient / "study" / "series"
        dicom_series(study, noise((6, 16, 16), index), f"1.2.3.{index}")
        labels = gland((6, 16, 16), 2)
        labels[:, :7] = np.minimum(labels[:, :7], 1)
        mask = volume(labels)
        if patient.endswith("55"):
            mask = volume(labels[1:5], origin=(10.0, -20.0, 8.0))
        sitk.WriteImage(mask, root / "Training" / f"{patient}{ending}.nrrd")
    return root


def i2cvb(root: Path) -> Path:
    """Two patients of Siemens, of which one lacks a slice of the mask, and one of GE."""
    cases = (("Siemens", "Patient 383121", ()), ("Siemens", "Patient 428260", (2,)), ("GE", "Patient 100001", ()))
    for index, (scanner, patient, skip) in enumerate(cases):
        folder = root / scanner / patient
        dicom_series(folder / "T2W", noise((5, 16, 16), index), f"1.2.4.{index}")
        dicom_series(folder / "GT" / "prostate", gland((5, 16, 16), 255), f"1.2.5.{index}", skip)
    return root


def disc_and_cup(height: int, width: int, y: int, x: int) -> tuple[np.ndarray, np.ndarray]:
    """Masks (H, W) of a disc with radius 60 and a cup with radius 30 around the pixel (y, x)."""
    rows, columns = np.ogrid[:height, :width]
    squared = (rows - y) ** 2 + (columns - x) ** 2
    return squared <= 60**2, squared <= 30**2


def photo(height: int, width: int, seed: int) -> Image.Image:
    """A colour gradient, quick to compress."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, width)
    pixels[..., 1] = np.linspace(0, 255, height)[:, None]
    pixels[..., 2] = seed
    return Image.fromarray(pixels)


def drishti_gs(root: Path) -> Path:
    """One training and one test photograph; four experts, of whom three see a larger disc."""
    for index, (part, truth, name) in enumerate((("Training", "GT", "002"), ("Test", "Test_GT", "001"))):
        folder = root / "Drishti-GS1_files" / part
        (folder / "Images").mkdir(parents=True)
        maps = folder / truth / f"drishtiGS_{name}" / "SoftMap"
        maps.mkdir(parents=True)
        photo(250, 300, index).save(folder / "Images" / f"drishtiGS_{name}.png")
        disc, cup = disc_and_cup(250, 300, 125, 90)
        wide = disc_and_cup(250, 300, 125, 100)[0]
        soft = np.where(disc & wide, 255, np.where(disc, 191, np.where(wide, 64, 0))).astype(np.uint8)
        Image.fromarray(soft).save(maps / f"drishtiGS_{name}_ODsegSoftmap.png")
        Image.fromarray(cup.astype(np.uint8) * 255).save(maps / f"drishtiGS_{name}_cupsegSoftmap.png")
    return root


def rim_one(root: Path) -> Path:
    """A stereo pair of each group, marked in the left half; the second lacks the mask of the cup."""
    for group, name in (("Healthy", "N-1-L"), ("Glaucoma and suspects", "G-2-R")):
        (root / group / "Stereo Images").mkdir(parents=True)
        (root / group / "Average_masks").mkdir()
        photo(260, 440, 7).save(root / group / "Stereo Images" / f"{name}.jpg")
        disc, cup = disc_and_cup(260, 440, 130, 110)
        for part, mask in (("Disc", disc), ("Cup", cup)):
            if (name, part) != ("G-2-R", "Cup"):
                path = root / group / "Average_masks" / f"{name}-{part}-Avg.png"
                Image.fromarray(mask.astype(np.uint8) * 255).save(path)
    return root


def refuge(root: Path) -> Path:
    """Three usable photographs, one of the test part, and one with an inverted mask."""
    images = {
        "Training400/Glaucoma": ["g0001"],
        "Training400/Non-Glaucoma": ["n0001"],
        "Test400": ["T0001"],
        "REFUGE-Validation400": ["V0001", "V0002"],
    }
    masks = {
        "g0001": "Annotation-Training400/Disc_Cup_Masks/Glaucoma",
        "n0001": "Annotation-Training400/Disc_Cup_Masks/Non-Glaucoma",
        "V0001": "REFUGE-Validation400-GT/Disc_Cup_Masks",
        "V0002": "REFUGE-Validation400-GT/Disc_Cup_Masks",
    }
    for folder, names in images.items():
        (root / folder).mkdir(parents=True)
        for name in names:
            photo(250, 300, ord(name[0])).save(root / folder / f"{name}.jpg")
    disc, cup = disc_and_cup(250, 300, 70, 230)
    values = np.where(cup, 0, np.where(disc, 128, 255)).astype(np.uint8)
    for name, folder in masks.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        Image.fromarray(255 - values if name == "V0002" else values).save(root / folder / f"{name}.bmp")
    return root
