"""From stain in a section to the picture of a slide scanner: Beer and Lambert, optics, camera, compression."""

from __future__ import annotations

import io

import numpy as np
from numpy import ndarray
from PIL import Image
from scipy.ndimage import gaussian_filter

from medfed.phantoms.synthesis.histology_sites import HistologySite

# optical density of red, green, blue a unit of stain (after Ruifrok and Johnston, 2001); the third is haemoglobin
HAEMATOXYLIN, EOSIN, BLOOD = np.array([[0.65, 0.70, 0.29], [0.10, 0.97, 0.20], [0.12, 0.78, 0.62]])
_TOWARDS_RED = np.array([-0.60, 0.45, 0.30])     # what haematoxylin gains as it reddens
_TOWARDS_ORANGE = np.array([-0.20, -0.10, 0.90])
_LUMINANCE = np.array([0.299, 0.587, 0.114])


def stain_vectors(hospital: HistologySite) -> ndarray:
    """(3, 3) float64: optical density of red, green, blue for haematoxylin, eosin and blood; rows of length 1."""
    rows = [
        _rotate_stain(HAEMATOXYLIN, _TOWARDS_RED, hospital.haematoxylin_turn),
        _rotate_stain(EOSIN, _TOWARDS_ORANGE, hospital.eosin_turn),
        BLOOD / np.linalg.norm(BLOOD),
    ]
    return np.array(rows)


def transmittance(stain: ndarray, vectors: ndarray) -> ndarray:
    """(H, W, 3) share of light that passes: exp(-concentration times density); `stain` is (H, W, 3), not negative."""
    return np.exp(-(stain @ vectors.astype(stain.dtype)))


def scan_slide(light: ndarray, hospital: HistologySite, rng: np.random.Generator) -> ndarray:
    """The picture (H, W, 3) uint8 of transmitted light (H, W, 3) in [0, 1], with this patch's focus."""
    focus_um = hospital.focus_um * rng.random() ** 2
    blur_pixels = np.hypot(hospital.blur_um, focus_um) / hospital.um_per_pixel
    light = gaussian_filter(light, (blur_pixels, blur_pixels, 0), truncate=3.0)
    light = light * np.array(hospital.white, dtype=light.dtype)
    light += np.sqrt(light) * rng.normal(0, max(hospital.noise, 1e-9), light.shape).astype(light.dtype)
    colour = np.clip(light, 0, 1) ** hospital.gamma
    grey = (colour @ _LUMINANCE.astype(light.dtype))[..., None]
    colour = np.clip(grey + hospital.saturation * (colour - grey), 0, 1)
    return jpeg_compressed((colour * 255 + 0.5).astype(np.uint8), round(hospital.jpeg_quality))


def jpeg_compressed(picture: ndarray, quality: int) -> ndarray:
    """A picture (H, W, 3) uint8 once through JPEG, as slides are stored."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def _rotate_stain(stain: ndarray, towards: ndarray, degrees: float) -> ndarray:
    """A unit vector turned in the plane of the stain and a direction, kept absorbing in every colour."""
    stain = stain / np.linalg.norm(stain)
    across = towards - (towards @ stain) * stain
    across /= np.linalg.norm(across)
    turned = np.cos(np.radians(degrees)) * stain + np.sin(np.radians(degrees)) * across
    turned = np.clip(turned, 0.01, None)
    return turned / np.linalg.norm(turned)
