"""Simulated fundus camera: illumination, optics, sensor and JPEG compression."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray
from scipy import ndimage

from medfed.phantoms.synthesis.common import jpeg_compressed


@dataclass(frozen=True)
class Camera:
    """Parameters of one camera model. With vignetting, a large `axis_mm` darkens the nasal side."""

    field_mm: float  # side length of the square image on the retina; a wide field shows a small disc
    colours: tuple[tuple[float, float, float], ...]  # from red, green, blue of the eye to those of the sensor
    white_balance: tuple[float, float, float]  # gains of red, green and blue
    exposure: float  # gain of all channels
    gamma: float  # exponent of the display curve, about 1/2.2
    vignetting: float  # fraction of the light that is lost 6 mm from the optical axis
    axis_mm: float  # optical axis, from the disc's centre to the temple: about 4.5 if the macula is centred
    gradient: float  # relative brightness change across the image by an off-centre flash, in a random direction
    glare: float  # scattered light added to the whole image, as a fraction of white
    blur_mm: float  # standard deviation of the point spread function
    sharpening: float  # strength of unsharp masking
    noise: float  # standard deviation of the shot noise at white, as a fraction of white
    jpeg_quality: int  # 1 to 95

    def sample_session(self, rng: np.random.Generator) -> Camera:
        """Return a copy with small random changes, as between sessions with different operators."""
        spread = {"field_mm": 0.04, "exposure": 0.16, "gamma": 0.03, "gradient": 0.3, "blur_mm": 0.2, "noise": 0.1}
        changed = {name: getattr(self, name) * float(np.exp(rng.normal(0, sd))) for name, sd in spread.items()}
        balance = np.asarray(self.white_balance) * np.exp(rng.normal(0, 0.03, 3))
        glare = self.glare * float(rng.uniform(0.5, 1.6))
        return replace(self, **changed, glare=glare, white_balance=tuple(balance.tolist()))


def take_photograph(light: ndarray, camera: Camera, x: ndarray, y: ndarray, rng: np.random.Generator) -> ndarray:
    """Photograph an eye's linear reflectance, (Y, X, 3) from 0 to about 1, as uint8 RGB; `x`, `y`: mm from the disc."""
    pixel_mm = abs(float(x[0, 1] - x[0, 0]))
    illuminated = light * _illumination(camera, x, y, rng)[..., None]
    blurred = ndimage.gaussian_filter(illuminated, (camera.blur_mm / pixel_mm, camera.blur_mm / pixel_mm, 0))
    white_balance = np.asarray(camera.white_balance, np.float32)
    raw = (blurred @ np.asarray(camera.colours, np.float32).T).clip(0) * white_balance * camera.exposure
    raw = raw + np.float32(camera.glare) * white_balance
    noise = rng.standard_normal(raw.shape, dtype=np.float32) * np.sqrt(raw.clip(0) + 0.01)
    noise = ndimage.gaussian_filter(noise, (0.5, 0.5, 0)) * 1.8  # demosaicing and scaling correlate the noise
    displayed = _shoulder(raw + camera.noise * noise) ** np.float32(camera.gamma)
    if camera.sharpening:
        width = 0.03 / pixel_mm
        displayed = displayed + camera.sharpening * (displayed - ndimage.gaussian_filter(displayed, (width, width, 0)))
    return jpeg_compressed(np.rint(displayed.clip(0, 1) * 255).astype(np.uint8), camera.jpeg_quality)


def _illumination(camera: Camera, x: ndarray, y: ndarray, rng: np.random.Generator) -> ndarray:
    """Relative illumination of every pixel, (Y, X)."""
    away2 = (x - camera.axis_mm) ** 2 + y**2
    loss = camera.vignetting * (away2 - camera.axis_mm**2) / 36.0
    angle = rng.uniform(0, 2 * np.pi)
    slope = camera.gradient * (x * np.cos(angle) + y * np.sin(angle)) / (camera.field_mm / 2)
    return np.clip((1 - loss) * (1 + slope), 0.1, 2.0).astype(np.float32)


def _shoulder(light: ndarray) -> ndarray:
    """Compress highlights: linear up to 0.7, then an exponential approach to 1, so that the disc does not saturate."""
    over = np.clip(light - 0.7, 0, None)
    return np.clip(np.minimum(light, 0.7) + 0.3 * (1 - np.exp(-over / 0.3)), 0, 1).astype(np.float32)
