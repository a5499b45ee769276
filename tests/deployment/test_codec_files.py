"""The codecs of a plan lie next to it, named by their checksums."""

from dataclasses import replace

import pytest

from medfed.config.schema import load_text
from medfed.core.errors import UserError
from medfed.deployment.codec_files import export_codecs, resolve_codecs
from medfed.methods.ccst import CCST
from medfed.methods.fedprox import FedProx
from medfed.methods.stack import Stack
from medfed.networks.adain import load_codec, serialise_codec

CONFIG = load_text("data: {name: prostate, root: x}\nnetwork: {name: unet}\nmethod: {name: fedavg}\n", "plan.yaml")


@pytest.fixture
def config(tmp_path):
    codec = load_codec()
    path = tmp_path / "mine.safetensors"
    path.write_bytes(serialise_codec(codec, {"architecture": "small", "channels": list(codec.encoder.channels)}))
    return replace(CONFIG, method=Stack((CCST(codec=str(path)), FedProx())))


def test_a_codec_is_copied_named_by_its_checksum_and_resolved(config, tmp_path):
    (tmp_path / "sent").mkdir()
    plan = export_codecs(config, tmp_path / "sent")
    (name,) = plan.method.files
    assert (
        name.startswith("codec_")
        and (tmp_path / "sent" / name).read_bytes() == (tmp_path / "mine.safetensors").read_bytes()
    )
    assert plan.method.methods[1] == FedProx()
    resolved = resolve_codecs(plan, tmp_path / "sent")
    assert resolved.method.files == (str(tmp_path / "sent" / name),)


def test_medfeds_own_codec_is_not_copied(tmp_path):
    config = replace(CONFIG, method=CCST())
    assert export_codecs(config, tmp_path) == config == resolve_codecs(config, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_missing_and_a_changed_codec_are_refused(config, tmp_path):
    plan = export_codecs(config, tmp_path)
    file = tmp_path / plan.method.files[0]
    file.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(UserError, match="is not the codec that the plan names"):
        resolve_codecs(plan, tmp_path)
    file.unlink()
    with pytest.raises(UserError, match="is missing; the plan needs this codec"):
        resolve_codecs(plan, tmp_path)
