"""The style codecs of a plan, as files that travel with it.

All sites of a federation must use exactly the same codec: two codecs with the same architecture give statistics of the
same shape that must not be mixed, and no check of shapes would find that. A plan therefore names a codec by its
checksum, and its file lies next to the plan.
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
    """Copy the style codecs that a config's method uses into a folder, under names that contain their checksums.

    A style codec is a pretrained encoder and decoder, stored in a file. A codec that is part of medfed is not copied.

    Args:
        config: the config.
        folder: an existing folder.

    Returns:
        A copy of the config, in which the path of each copied codec is replaced by the name of its copy.

    Raises:
        UserError: if a codec is missing or damaged.
    """
    names = {}
    for name in config.method.files:
        load_codec(name)  # finds an error here rather than at every hospital
        path = codec_path(name)
        names[name] = _file_name(path)
        write_atomically(folder / names[name], path.read_bytes())
    return replace(config, method=config.method.with_files(names))


def resolve_codecs(config: Config, folder: Path) -> Config:
    """Find the style codecs that a plan names in the plan's folder, and compare them with their checksums.

    The plan is the config of the federation, written by the coordinator. A style codec is a pretrained encoder and
    decoder, stored in a file.

    Args:
        config: the plan, in which a codec has the name that `export_codecs` gave to its copy.
        folder: the folder of the plan.

    Returns:
        A copy of the plan, in which the name of each codec is replaced by its path.

    Raises:
        UserError: if a file is missing or has another checksum.
    """
    paths = {}
    for name in config.method.files:
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: is missing; the plan needs this codec, so copy the coordinator's file there")
        if _file_name(path) != name:
            raise UserError(f"{path}: is not the codec that the plan names, or was changed on its way; copy it again "
                            "from the coordinator")
        paths[name] = str(path)
    return replace(config, method=config.method.with_files(paths))


def _file_name(path: Path) -> str:
    return f"codec_{file_sha256(path)[:32]}.safetensors"
