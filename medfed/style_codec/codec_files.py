"""The codecs that a method redraws with, as files: all sites of a federation must have the same, to the byte.

Two codecs of one architecture share statistics of the same shape, which mean nothing to each other, and nobody would
notice. So a plan names a codec by its digest, and it travels beside the plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from medfed.config.schema import Config
from medfed.core.errors import UserError
from medfed.core.files import write_atomically
from medfed.datasets.checking import digest
from medfed.federation.method import Method
from medfed.methods.stack import Stack
from medfed.networks.adain import codec_file, load_codec

OWN = "small"  # comes with medfed


def codecs(method: Method) -> list[str]:
    """What the method, or those of a stack, name as their codec; not medfed's own."""
    parts = method.methods if isinstance(method, Stack) else (method,)
    return sorted({part.codec for part in parts if getattr(part, "transfer", "") == "codec"} - {OWN})


def export_codecs(config: Config, folder: Path) -> Config:
    """Copy the codecs into the folder, and name them as they are called there."""

    def copied(name: str) -> str:
        load_codec(name)  # a UserError here, and not at every hospital
        path = codec_file(name)
        called = _called(path)
        write_atomically(folder / called, path.read_bytes())
        return called

    return _renamed(config, copied)


def resolve_codecs(config: Config, folder: Path) -> Config:
    """The plan with its codecs as they lie beside it; UserError if one is missing or another."""

    def found(name: str) -> str:
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: is missing; the plan redraws images with this codec, so put the coordinator's "
                            "file there")
        if _called(path) != name:
            raise UserError(f"{path}: is not the codec that the plan names, or was changed on its way; get it again "
                            "from the coordinator")
        return str(path)

    return _renamed(config, found)


def _called(path: Path) -> str:
    return f"codec_{digest(path)[:32]}.safetensors"


def _renamed(config: Config, rename: Callable[[str], str]) -> Config:
    names = {name: rename(name) for name in codecs(config.method)}

    def one(method: Method) -> Method:
        return replace(method, codec=names[method.codec]) if codecs(method) else method

    method = config.method
    if isinstance(method, Stack):
        return replace(config, method=replace(method, methods=tuple(map(one, method.methods))))
    return replace(config, method=one(method))
