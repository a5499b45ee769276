"""Simulated slide scanner: light absorption by the stains (Beer-Lambert law), optics, camera and JPEG compression."""

from __future__ import annotations

import io

import numpy as np
from numpy import ndarray
from PIL import Image
from scipy.ndimage import gaussian_filter

from medfed.phantoms.synthesis.histology_sites import HistologySite

# Optical density of red, green and blue for one unit of each stain, after Ruifrok and Johnston, "Quantification of
# histochemical staining by color deconvolution", 2001. The third row is haemoglobin.
HAEMATOXYLIN, EOSIN, BLOOD = np.array([[0.65, 0.70, 0.29], [0.10, 0.97, 0.20], [0.12, 0.78, 0.62]])
_TOWARDS_RED = np.array([-0.60, 0.45, 0.30])  # change of the optical density as haematoxylin becomes redder
_TOWARDS_ORANGE = np.array([-0.20, -0.10, 0.90])  # change of the optical density as eosin becomes more orange
_LUMINANCE = np.array([0.299, 0.587, 0.114])


def stain_vectors(site: HistologySite) -> ndarray:
    """Compute how strongly each stain of a site absorbs red, green and blue light.

    Args:
        site: stain and scanner of the site.

    Returns:
        (3, 3) float64, optical densities (natural logarithm) of one unit of each stain. The rows are haematoxylin,
        eosin and blood; the columns are red, green and blue. Each row has norm 1.
    """
    rows = [
        _rotate_stain(HAEMATOXYLIN, _TOWARDS_RED, site.haematoxylin_turn),
        _rotate_stain(EOSIN, _TOWARDS_ORANGE, site.eosin_turn),
        BLOOD / np.linalg.norm(BLOOD),
    ]
    return np.array(rows)


def transmittance(stain: ndarray, vectors: ndarray) -> ndarray:
    """Compute the fraction of the light that passes through a stained section, exp(-density), by the Beer-Lambert law.

    Each pixel has a density for red, for green and for blue. Each density is a sum over the three stains: the amount of
    the stain times the optical density of one unit of the stain.

    Args:
        stain: (H, W, 3), amounts of haematoxylin, eosin and blood, at least 0, in the units that `vectors` defines.
        vectors: (3, 3), optical densities (natural logarithm) of one unit of each stain, from `stain_vectors`. The rows
            are haematoxylin, eosin and blood; the columns are red, green and blue.

    Returns:
        (H, W, 3), transmitted red, green and blue light in (0, 1].
    """
    return np.exp(-(stain @ vectors.astype(stain.dtype)))


def scan_slide(light: ndarray, site: HistologySite, rng: np.random.Generator) -> ndarray:
    """Simulate the image that a slide scanner stores: blur, white balance, noise, display curve, saturation and JPEG.

    Args:
        light: (H, W, 3), transmitted red, green and blue light in [0, 1], from `transmittance`.
        site: stain and scanner of the site.
        rng: NumPy random generator for the noise and the blur by wrong focus, which varies from patch to patch.

    Returns:
        (H, W, 3) uint8, RGB.
    """
    focus_um = site.focus_um * rng.random() ** 2
    blur_pixels = np.hypot(site.blur_um, focus_um) / site.um_per_pixel
    light = gaussian_filter(light, (blur_pixels, blur_pixels, 0), truncate=3.0)
    light = light * np.array(site.white, dtype=light.dtype)
    light += np.sqrt(light) * rng.normal(0, max(site.noise, 1e-9), light.shape).astype(light.dtype)
    colour = np.clip(light, 0, 1) ** site.gamma
    grey = (colour @ _LUMINANCE.astype(light.dtype))[..., None]
    colour = np.clip(grey + site.saturation * (colour - grey), 0, 1)
    return jpeg_compressed((colour * 255 + 0.5).astype(np.uint8), round(site.jpeg_quality))


def jpeg_compressed(image: ndarray, quality: int) -> ndarray:
    """Compress an image with JPEG, as slide scanners do, and decode it again.

    Args:
        image: (H, W, 3) uint8, RGB.
        quality: JPEG quality, 1 to 95.

    Returns:
        (H, W, 3) uint8, RGB.
    """
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def _rotate_stain(stain: ndarray, towards: ndarray, degrees: float) -> ndarray:
    """Rotate a stain's optical density vector towards a direction; return a unit vector with positive entries."""
    stain = stain / np.linalg.norm(stain)
    across = towards - (towards @ stain) * stain
    across /= np.linalg.norm(across)
    turned = np.cos(np.radians(degrees)) * stain + np.sin(np.radians(degrees)) * across
    turned = np.clip(turned, 0.01, None)
    return turned / np.linalg.norm(turned)
