"""The style codecs that a plan names, as files: all sites of a federation must have the same ones, to the byte.

Two codecs of one architecture share statistics of the same shape, which mean nothing to each other, and nobody would
notice. So a plan names a codec by its SHA-256, and the file travels beside the plan.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from medfed.config.schema import Config
from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.datasets.checking import file_sha256
from medfed.networks.adain import codec_path, load_codec


def export_codecs(config: Config, folder: Path) -> Config:
    """Copy the method's codecs into the folder; returns the config with the codecs' names there."""
    names = {}
    for name in config.method.files:
        load_codec(name)  # a UserError here, and not at every hospital
        path = codec_path(name)
        names[name] = _name(path)
        write_atomically(folder / names[name], path.read_bytes())
    return replace(config, method=config.method.with_files(names))


def resolve_codecs(config: Config, folder: Path) -> Config:
    """The plan with the paths of its codecs beside it; UserError if a file is missing or is not the plan's codec."""
    paths = {}
    for name in config.method.files:
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: is missing; the plan redraws images with this codec, so put the coordinator's "
                            "file there")
        if _name(path) != name:
            raise UserError(f"{path}: is not the codec that the plan names, or was changed on its way; get it again "
                            "from the coordinator")
        paths[name] = str(path)
    return replace(config, method=config.method.with_files(paths))


def _name(path: Path) -> str:
    """The name of a codec in a plan, by its SHA-256."""
    return f"codec_{file_sha256(path)[:32]}.safetensors"
