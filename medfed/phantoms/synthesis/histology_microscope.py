"""Simulated slide scanner: light absorption by the stains (Beer-Lambert law), optics, camera and JPEG compression."""

from __future__ import annotations

import numpy as np
from numpy import ndarray
from scipy.ndimage import gaussian_filter

from medfed.phantoms.synthesis.common import jpeg_compressed
from medfed.phantoms.synthesis.histology_sites import HistologySite

# Optical density of red, green and blue for one unit of each stain, after Ruifrok and Johnston, "Quantification of
# histochemical staining by color deconvolution", 2001. The third row is haemoglobin.
HAEMATOXYLIN, EOSIN, BLOOD = np.array([[0.65, 0.70, 0.29], [0.10, 0.97, 0.20], [0.12, 0.78, 0.62]])
_TOWARDS_RED = np.array([-0.60, 0.45, 0.30])  # change of the optical density as haematoxylin becomes redder
_TOWARDS_ORANGE = np.array([-0.20, -0.10, 0.90])  # change of the optical density as eosin becomes more orange
_LUMINANCE = np.array([0.299, 0.587, 0.114])


def stain_vectors(site: HistologySite) -> ndarray:
    """Optical densities of norm 1 (natural logarithm): rows haematoxylin, eosin, blood; columns red, green, blue."""
    rows = [
        _rotate_stain(HAEMATOXYLIN, _TOWARDS_RED, site.haematoxylin_turn),
        _rotate_stain(EOSIN, _TOWARDS_ORANGE, site.eosin_turn),
        BLOOD / np.linalg.norm(BLOOD),
    ]
    return np.array(rows)


def transmittance(stain: ndarray, vectors: ndarray) -> ndarray:
    """Light (H, W, 3) in (0, 1] that passes amounts of the three stains (H, W, 3) (Beer-Lambert law)."""
    return np.exp(-(stain @ vectors.astype(stain.dtype)))


def scan_slide(light: ndarray, site: HistologySite, rng: np.random.Generator) -> ndarray:
    """Return the stored image, (H, W, 3) uint8: blur, white balance, noise, display curve, saturation and JPEG."""
    focus_um = site.focus_um * rng.random() ** 2
    blur_pixels = np.hypot(site.blur_um, focus_um) / site.um_per_pixel
    light = gaussian_filter(light, (blur_pixels, blur_pixels, 0), truncate=3.0)
    light = light * np.array(site.white, dtype=light.dtype)
    light += np.sqrt(light) * rng.normal(0, max(site.noise, 1e-9), light.shape).astype(light.dtype)
    colour = np.clip(light, 0, 1) ** site.gamma
    grey = (colour @ _LUMINANCE.astype(light.dtype))[..., None]
    colour = np.clip(grey + site.saturation * (colour - grey), 0, 1)
    return jpeg_compressed((colour * 255 + 0.5).astype(np.uint8), site.jpeg_quality)


def _rotate_stain(stain: ndarray, towards: ndarray, degrees: float) -> ndarray:
    """Rotate an optical density vector towards a direction; return a unit vector with positive entries."""
    stain = stain / np.linalg.norm(stain)
    across = towards - (towards @ stain) * stain
    across /= np.linalg.norm(across)
    turned = np.cos(np.radians(degrees)) * stain + np.sin(np.radians(degrees)) * across
    turned = np.clip(turned, 0.01, None)
    return turned / np.linalg.norm(turned)
