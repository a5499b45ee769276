"""The style codecs (pretrained encoder and decoder) of a plan, as files that travel with it.

All sites of a federation must use exactly the same codec, and a check of shapes would not find that two codecs differ.
A plan therefore names a codec by its checksum. A codec that is part of medfed keeps its name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from medfed.config.schema import Config
from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.datasets.duplicates import file_sha256
from medfed.networks.parts.adain import codec_path, load_codec


def export_codecs(config: Config, folder: Path) -> Config:
    """Copy the codecs of a config's method to a folder; return the config with the names of the copies."""
    names = {}
    for name in config.method.files:
        load_codec(name)  # finds an error here rather than at every hospital
        path = codec_path(name)
        names[name] = _file_name(path)
        write_atomically(folder / names[name], path.read_bytes())
    return replace(config, method=config.method.with_files(names))


def resolve_codecs(config: Config, folder: Path) -> Config:
    """Return a plan with the paths of its codecs in `folder`; UserError if one is missing or has another checksum."""
    paths = {}
    for name in config.method.files:
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: is missing; the plan needs this codec, so copy the coordinator's file there")
        if _file_name(path) != name:
            raise UserError(
                f"{path}: is not the codec that the plan names, or was changed on its way; copy it again "
                "from the coordinator"
            )
        paths[name] = str(path)
    return replace(config, method=config.method.with_files(paths))


def _file_name(path: Path) -> str:
    """The name of the copy of a codec that hospitals get; it contains the file's checksum."""
    return f"codec_{file_sha256(path)[:32]}.safetensors"
