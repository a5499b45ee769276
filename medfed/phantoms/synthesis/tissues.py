"""Tissues of the male pelvis and their typical properties in T2-weighted MRI."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tissue:
    """Magnetic resonance properties of one tissue at 3 tesla."""

    proton_density: float  # relative to water
    t1_ms: float = 1000.0
    t2_ms: float = 50.0  # for fat, the long apparent T2 of fast spin echo sequences
    grain: str = ""  # random field (`Grid.fields`) by which T2 varies inside the tissue; "" for a uniform one
    variation: float = 0.0  # relative change of T2 for one standard deviation of that field


TISSUES = {
    "air": Tissue(0.0),
    "void": Tissue(0.06, 900, 40),  # fast blood, cortical bone, cartilage
    "skin": Tissue(0.70, 900, 60),
    "fat": Tissue(0.88, 380, 120, "septa", 0.10),
    "pelvic_fat": Tissue(0.86, 380, 110, "strands", 0.16),  # small vessels and fascia run through it
    "muscle": Tissue(0.80, 1400, 37, "streaks", 0.16),
    "levator": Tissue(0.78, 1400, 38, "fine", 0.12),
    "smooth_muscle": Tissue(0.80, 1400, 52, "fine", 0.14),  # bladder, rectum, sphincter
    "marrow": Tissue(0.74, 500, 98, "spongy", 0.10),
    "urine": Tissue(1.00, 3800, 330, "broad", 0.03),
    "mucosa": Tissue(0.85, 1500, 100, "fine", 0.15),
    "stool": Tissue(0.60, 1000, 52, "coarse", 0.25),
    "vein": Tissue(0.90, 1700, 150, "fine", 0.20),
    "nerve": Tissue(0.80, 1200, 68, "fine", 0.25),
    "seminal_lumen": Tissue(0.90, 2200, 140, "fine", 0.25),
    "seminal_wall": Tissue(0.80, 1400, 50),
    "peripheral": Tissue(0.88, 1750, 135, "glandular", 0.17),
    "transition": Tissue(0.85, 1550, 83, "nodular", 0.20),
    "central": Tissue(0.82, 1500, 66, "glandular", 0.12),
    "nodule_bright": Tissue(0.87, 1700, 122, "fine", 0.22),
    "nodule_dark": Tissue(0.82, 1400, 62, "fine", 0.14),
    "stroma": Tissue(0.78, 1300, 45, "fine", 0.12),  # anterior fibromuscular stroma
    "capsule": Tissue(0.75, 1200, 44),
    "lesion": Tissue(0.82, 1400, 68, "fine", 0.10),
}
