"""Several methods in one: a stack of one equals that method, and each method sees only its own tensors."""

from dataclasses import dataclass, replace

import pytest
import torch
from toy_runs import rounds_of, shared_weights, updates_of

from medfed.federation.message import State, digest
from medfed.federation.method import Method
from medfed.methods.ccst import CCST
from medfed.methods.elcfs import ELCFS
from medfed.methods.fedavg import FedAvg
from medfed.methods.feddg_ga import FedDGGA
from medfed.methods.fedgma import FedGMA
from medfed.methods.fisc import FISC
from medfed.methods.rsc import RSC
from medfed.methods.scaffold import SCAFFOLD
from medfed.methods.stable_fdg import StableFDG
from medfed.methods.stack import Stack
from medfed.methods.swa import SWA
from medfed.methods.trimmed_mean import TrimmedMean
from medfed.networks.parts.style_transfer import StyleTransfer

ELCFS_TOY = ELCFS(alpha=0.1, gamma=0.1, views=1, min_patients=1)
STYLES = CCST(transfer="moments", k=2, min_patients=1)


def weights(toy, method):
    return shared_weights(toy, method, 2)


@pytest.mark.parametrize("others", [(), (FedAvg(),)], ids=["alone", "with fedavg"])
@pytest.mark.parametrize("method", [ELCFS_TOY, STYLES], ids=["elcfs", "ccst"])
def test_a_stack_of_one_method_or_with_fedavg_is_bit_identical_to_that_method(toy, method, others):
    single, stacked = weights(toy, method), weights(toy, Stack((*others, method)))
    assert all(torch.equal(single[name], stacked[name]) for name in single)


@pytest.mark.parametrize("method", [STYLES, FISC(transfer="moments", min_patients=1)], ids=["ccst", "fisc"])
def test_images_are_restyled_once_if_another_method_of_the_stack_broadcasts_new_tensors(toy, method, monkeypatch):
    """SCAFFOLD's control variates change in every round, and the styles never."""
    restyled, restyle = [], StyleTransfer.restyle
    monkeypatch.setattr(StyleTransfer, "restyle", lambda *args: restyled.append(1) or restyle(*args))
    numbers = []
    for one, n_rounds in ((method, 1), (Stack((method, SCAFFOLD())), 3)):
        restyled.clear()
        rounds_of(toy, one, n_rounds)
        numbers.append(len(restyled))
    assert numbers[0] == numbers[1] > 0


def test_a_stack_expands_again_if_a_tensor_changes_that_one_of_its_methods_reads():
    assert Stack((STYLES, SCAFFOLD())).expand_reads == ("0/style/",)
    assert Stack((SCAFFOLD(), FISC())).expand_reads == ("1/style/",)


@dataclass(frozen=True)
class Remembering(Method):
    """Count its rounds at the site and at the coordinator, under a name that another method uses as well."""

    step: float = 1.0

    def on_round_start(self, local):
        local.memory["count"] = local.memory.get("count", torch.zeros(())) + self.step

    def on_round_end(self, local):
        return {"count": local.memory["count"]}

    def regulariser(self, local, output):
        return self.step * output.logits.square().mean()

    def remember(self, state, updates, rng):
        return {"count": sum(update.tensors["count"] for update in updates.values())}


def test_memory_entries_of_the_same_name_are_separate(toy):
    method = Stack((Remembering(1.0), Remembering(10.0)))
    last = rounds_of(toy, method, 2)[-1]
    assert {name: float(entry) for name, entry in last.state.memory.items()} == {"0/count": 6.0, "1/count": 60.0}


def test_regularisers_are_added(toy):
    one, two = (weights(toy, Stack((Remembering(a), Remembering(b)))) for a, b in ((1.0, 3.0), (4.0, 0.0)))
    assert all(torch.allclose(one[name], two[name], atol=1e-4) for name in one)


def test_the_average_uses_the_site_weights_of_its_methods(toy):
    """The sites have different sizes, so that the two averages differ."""
    even = replace(STYLES, site_weights="uniform")
    assert Stack((FedAvg(), even)).site_weights == "uniform" and Stack((FedAvg(), STYLES)).site_weights == "examples"
    updates, state = updates_of(a=(0.0, 1), b=(4.0, 3)), State(0, {"w": torch.zeros(1)})
    for method, expected in ((STYLES, 3.0), (even, 2.0)):
        for one in (method, Stack((FedAvg(), method))):
            assert one.aggregate(state, updates)["w"] == expected
    with pytest.raises(ValueError, match=r"different site_weights \(CCST uniform, StableFDG examples\)"):
        Stack((even, StableFDG()))
    with pytest.raises(ValueError, match=r"different site_weights \(CCST examples, CCST uniform\)"):
        Stack((replace(STYLES, k=1), even))
    with pytest.raises(ValueError, match="CCST has site_weights 'uniform', but FedGMA has its own aggregation"):
        Stack((FedGMA(), even))


@pytest.mark.parametrize(
    ("methods", "reason"),
    [
        ((ELCFS_TOY, ELCFS_TOY), "ELCFS and ELCFS each define 'loss', but only one of the combined"),
        ((RSC(), ELCFS_TOY), "RSC and ELCFS each define 'loss'"),
        ((FedGMA(), STYLES, TrimmedMean()), "FedGMA and TrimmedMean each define 'aggregate'"),
        ((FedGMA(), FedDGGA()), "FedGMA and FedDGGA each define 'aggregate'"),
        ((SWA(), SWA(start=0.0)), "SWA and SWA each define 'result_weights'"),
        ((STYLES, FedAvg(), STYLES), "methods contains CCST twice"),
        ((Stack((FedAvg(),)),), "methods contains another stack"),
        ((), "at least one method"),
        ((ELCFS_TOY, FedDGGA()), "share at different times .*ELCFS once, FedDGGA every round"),
    ],
)
def test_combinations_that_are_not_possible_give_a_reason(methods, reason):
    with pytest.raises(ValueError, match=reason):
        Stack(methods)


def test_it_is_read_from_a_config_and_written_back(tmp_path):
    from medfed.config.schema import load_text

    text = """
data: {name: prostate, root: data}
network: {name: unet}
method: {name: stack, methods: [{name: ccst, k: 2}, {name: elcfs, preset: paper}]}
"""
    config = load_text(text, "a.yaml")
    assert config.method == Stack((CCST(k=2), ELCFS(**ELCFS.presets["paper"])))
    assert load_text(config.yaml, "b.yaml") == config
    assert digest(config.yaml.encode()) == digest(load_text(config.yaml, "c").yaml.encode())


def test_a_stack_lists_and_replaces_the_files_of_its_methods():
    """The codec that comes with medfed is not a file to send, and neither is a codec that is not used."""
    styles, views = CCST(codec="a.safetensors"), FISC(codec="b.safetensors")
    assert CCST().files == FISC().files == CCST(transfer="moments", codec="a.safetensors").files == ()
    stack = Stack((views, FedAvg(), styles))
    assert stack.files == ("a.safetensors", "b.safetensors")
    renamed = stack.with_files({"a.safetensors": "1", "b.safetensors": "2"})
    assert renamed == Stack((FISC(codec="2"), FedAvg(), CCST(codec="1"))) and renamed.files == ("1", "2")
