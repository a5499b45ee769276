"""A fundus camera: what flash, optics, sensor and file format make of an eye."""

from __future__ import annotations

import io
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy import ndarray
from PIL import Image
from scipy import ndimage

SIGNED = ("axis_mm", "glare", "colours")  # may be 0 or negative: change in proportion to the difference


@dataclass(frozen=True)
class Camera:
    """One model with its usual settings. All numbers positive, except where 0 is said.

    Args:
        field_mm: side of the crop on the retina; a wide field makes the disc small.
        colours: (3, 3) rows: how red, green and blue of the eye reach each channel of the sensor, whose dyes overlap.
        white_balance: gain of red, green and blue: colour of flash and film against the vendor's idea of white.
        exposure: gain of all channels.
        gamma: exponent of the display curve, about 1/2.2.
        vignetting: share of light that is lost 6 mm from the optical axis.
        axis_mm: how far to the temple of the disc the axis points; 0 where the disc is centred, about 4.5 where the
            macula is. With vignetting it makes the nasal side darker.
        gradient: share by which a flash that is not centred brightens one side, drawn anew for every photograph.
        glare: light scattered by the objective, a share of white that covers everything; 0 without any.
        blur_mm: sigma of the point spread.
        sharpening: of edges in the camera, times the detail; 0 without any.
        noise: sd at white, as a share of white, of the light's own noise, which grows with the root of the signal.
        jpeg_quality: of the stored file, 1 to 95.
    """

    field_mm: float
    colours: tuple[tuple[float, float, float], ...]
    white_balance: tuple[float, float, float]
    exposure: float
    gamma: float
    vignetting: float
    axis_mm: float
    gradient: float
    glare: float
    blur_mm: float
    sharpening: float
    noise: float
    jpeg_quality: float

    def interpolate_from(self, reference: Camera, severity: float) -> Camera:
        """From the reference (severity 0) to this camera (1), and beyond; what has a sign or may be 0 linearly."""
        values: dict[str, Any] = {}
        for field in fields(self):
            mine, theirs = (np.asarray(getattr(camera, field.name), float) for camera in (self, reference))
            linear = field.name in (*SIGNED, "sharpening")
            blend = theirs + severity * (mine - theirs) if linear else theirs * (mine / theirs) ** severity
            values[field.name] = _plain(blend.tolist())
        values |= {"jpeg_quality": min(values["jpeg_quality"], 95.0)}
        return Camera(**(values | {name: max(values[name], 0.0) for name in ("glare", "sharpening")}))

    def sample_session(self, rng: np.random.Generator) -> Camera:
        """The same camera with another operator, focus and flash setting."""
        spread = {"field_mm": 0.04, "exposure": 0.16, "gamma": 0.03, "gradient": 0.3, "blur_mm": 0.2, "noise": 0.1}
        changed = {name: getattr(self, name) * float(np.exp(rng.normal(0, sd))) for name, sd in spread.items()}
        balance = np.asarray(self.white_balance) * np.exp(rng.normal(0, 0.03, 3))
        glare = self.glare * float(rng.uniform(0.5, 1.6))
        return replace(self, **changed, glare=glare, white_balance=tuple(balance.tolist()))


def take_photograph(light: ndarray, camera: Camera, x: ndarray, y: ndarray, rng: np.random.Generator) -> ndarray:
    """A stored picture of what an eye sends back.

    Args:
        light: (Y, X, 3) linear, 0 to about 1.
        x, y: (Y, X) place of every pixel in mm, x to the temple.

    Returns:
        (Y, X, 3) uint8.
    """
    pixel_mm = abs(float(x[0, 1] - x[0, 0]))
    lit = light * _illumination(camera, x, y, rng)[..., None]
    seen = ndimage.gaussian_filter(lit, (camera.blur_mm / pixel_mm, camera.blur_mm / pixel_mm, 0))
    white_balance = np.asarray(camera.white_balance, np.float32)
    raw = (seen @ np.asarray(camera.colours, np.float32).T).clip(0) * white_balance * camera.exposure
    raw = raw + np.float32(camera.glare) * white_balance
    noise = rng.standard_normal(raw.shape, dtype=np.float32) * np.sqrt(raw.clip(0) + 0.01)
    noise = ndimage.gaussian_filter(noise, (0.5, 0.5, 0)) * 1.8  # demosaicing and scaling spread it
    displayed = _shoulder(raw + camera.noise * noise) ** np.float32(camera.gamma)
    if camera.sharpening:
        width = 0.03 / pixel_mm
        displayed = displayed + camera.sharpening * (displayed - ndimage.gaussian_filter(displayed, (width, width, 0)))
    return _as_jpeg(np.rint(displayed.clip(0, 1) * 255).astype(np.uint8), int(round(camera.jpeg_quality)))


def _illumination(camera: Camera, x: ndarray, y: ndarray, rng: np.random.Generator) -> ndarray:
    """Share of the flash that lands, (Y, X)."""
    away2 = (x - camera.axis_mm) ** 2 + y**2
    loss = camera.vignetting * (away2 - camera.axis_mm**2) / 36.0
    angle = rng.uniform(0, 2 * np.pi)
    slope = camera.gradient * (x * np.cos(angle) + y * np.sin(angle)) / (camera.field_mm / 2)
    return np.clip((1 - loss) * (1 + slope), 0.1, 2.0).astype(np.float32)


def _shoulder(light: ndarray) -> ndarray:
    """Linear up to 0.7, then bent, so that a bright disc nears white without a hard edge."""
    over = np.clip(light - 0.7, 0, None)
    return np.clip(np.minimum(light, 0.7) + 0.3 * (1 - np.exp(-over / 0.3)), 0, 1).astype(np.float32)


def _as_jpeg(picture: ndarray, quality: int) -> ndarray:
    """Through the compression that the camera stores with."""
    stored = io.BytesIO()
    Image.fromarray(picture).save(stored, "JPEG", quality=quality)
    with Image.open(stored) as again:
        return np.asarray(again)


def _plain(values: object) -> object:
    return tuple(map(_plain, values)) if isinstance(values, list) else values
