"""A user's codec in a federation: it is sent with the plan, and every site has the same bytes."""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import tiny_yaml

from medfed import coordinator
from medfed.config.schema import load
from medfed.core.errors import UserError
from medfed.deployment import join
from medfed.networks.parts.adain import load_codec, serialise_codec

SETTINGS = {"architecture": "small", "channels": list(load_codec().encoder.channels)}


def written(path, scale: float):
    """Write a codec whose weights are a multiple of those of medfed's own codec."""
    codec = load_codec()
    for weights in codec.parameters():
        weights.mul_(scale)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(serialise_codec(codec, SETTINGS))
    return path


def prepare(folder: Path) -> int:
    """Write `fed.yaml` for two sites in the folder `fed`."""
    config, out = str(folder / "fed.yaml"), str(folder / "fed")
    return coordinator.main(["prepare", config, "--sites", "BMC", "HK", "--out", out])


@pytest.fixture(params=["alone", "in a stack"])
def prepared(tmp_path, tiny_phantom, request):
    """A coordinator's folder prepared with its own codec, and the folder of site HK with what HK was sent."""
    codec = written(tmp_path / "ours" / "codec.safetensors", 0.5).parent
    ccst = f"{{name: ccst, codec: {codec}, min_patients: 1}}"
    method = ccst if request.param == "alone" else f"{{name: stack, methods: [{{name: fedavg}}, {ccst}]}}"
    text = tiny_yaml(tiny_phantom).replace("{name: elcfs, alpha: 0.1, min_patients: 1}", method)
    (tmp_path / "fed.yaml").write_text(text)
    assert prepare(tmp_path) == 0
    here = tmp_path / "fed" / "hospitals" / "HK"
    shutil.copytree(tiny_phantom / "HK", here / "data" / "HK")
    (sent,) = here.glob("codec_*.safetensors")
    return tmp_path, sent


def test_the_plan_identifies_a_codec_by_its_content_and_a_site_uses_the_file_next_to_its_plan(prepared):
    tmp_path, sent = prepared
    plan = (tmp_path / "fed" / "plan.yaml").read_text()
    assert sent.read_bytes() == (tmp_path / "ours" / "codec.safetensors").read_bytes()
    assert sent.name in plan and str(tmp_path / "ours") not in plan
    assert (sent.parent / "plan.yaml").read_text() == plan
    _, config = join.read_site_file(sent.parent / "HK.yaml")
    method = getattr(config.method, "methods", (config.method,))[-1]
    assert method.codec == str(sent)
    for own, others in zip(load_codec(method.codec).parameters(), load_codec().parameters(), strict=True):
        assert torch.equal(own, 0.5 * others)


def test_a_missing_a_different_and_a_codec_outside_the_folder_are_rejected_before_anything_is_sent(prepared):
    """A plan cannot make a site read a file of its own disk."""
    _, sent = prepared
    sent.unlink()
    with pytest.raises(UserError, match=f"{sent.name}: is missing; .*copy the coordinator's file there"):
        join.read_site_file(sent.parent / "HK.yaml")
    written(sent, 0.25)
    with pytest.raises(UserError, match=f"{sent.name}: is not the codec that the plan names"):
        join.read_site_file(sent.parent / "HK.yaml")
    plan = sent.parent / "plan.yaml"
    plan.write_text(plan.read_text().replace(sent.name, "../../../ours/codec.safetensors"))
    with pytest.raises(UserError, match="is not the codec that the plan names"):
        join.read_site_file(sent.parent / "HK.yaml")


def test_medfeds_own_codec_needs_no_file(tmp_path, tiny_phantom):
    elcfs, ccst = "{name: elcfs, alpha: 0.1, min_patients: 1}", "{name: ccst, min_patients: 1}"
    (tmp_path / "fed.yaml").write_text(tiny_yaml(tiny_phantom).replace(elcfs, ccst))
    assert prepare(tmp_path) == 0
    assert load(tmp_path / "fed" / "plan.yaml").method.codec == "small"
    assert not list((tmp_path / "fed").rglob("codec_*"))
