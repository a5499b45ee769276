"""The evaluator: with the pictures drawn from its scores, the only part that opens the unseen site, after training."""

from __future__ import annotations

import warnings
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from monai.data import MetaTensor
from torch import Tensor, nn
from tqdm import tqdm

from medfed.core.seeds import number as stream_number
from medfed.datasets.base import Case
from medfed.experiments.setup import Experiment
from medfed.experiments.unseen_batch_norm import nearest, policy, with_batch_statistics
from medfed.functional.weights import average
from medfed.metrics.classification_summary import case_row
from medfed.metrics.ratio import ratio_row, vertical_ratio
from medfed.metrics.segmentation import score
from medfed.networks.tent import Tent
from medfed.tasks.classification import Classification, even_parts

Rows = list[dict[str, object]]


@dataclass(frozen=True)
class EvaluationResult:
    """What the tests found.

    rows: one a patient and structure, as `medfed.metrics.summary.CASE_COLUMNS` names them; for classification one an
        image (`medfed.metrics.classification_summary`).
    ratios: one a patient (`medfed.metrics.ratio`) where the dataset has structures to compare.
    masks: what was predicted of each patient of the unseen site, so that a picture shows what the score is of.
    """

    rows: Rows = field(default_factory=list)
    ratios: Rows = field(default_factory=list)
    masks: dict[str, PackedMask] = field(default_factory=dict)


def evaluate(simulation: Experiment, weights: Mapping[str, Tensor], quiet: bool) -> EvaluationResult:
    """Score every test patient of the source sites ("seen") and every patient of the unseen and validation sites.

    Args:
        weights: the global state dict. Entries that a source site keeps for itself overlay it there; the unseen and the
            validation site get their average (`unseen_weights`), or what FedBN's `unseen_bn` says.

    Returns:
        What was found: rows, ratios, and the masks of the unseen site.
    """
    onlooker = simulation.engine.validation_site
    others = {"unseen": simulation.unseen}
    if onlooker:
        others["validation"] = {onlooker.name: simulation.splits[onlooker.name].validation}
    seen = {site: patients.test for site, patients in simulation.splits.items() if patients.train}
    n_cases = sum(len(cases) for role in (seen, *others.values()) for cases in role.values())
    own = {} if simulation.clients else {site.name: site for site in simulation.engine.members}
    findings = EvaluationResult()
    with tqdm(total=n_cases, desc="testing", unit="case", disable=quiet, dynamic_ncols=True, leave=False) as bar:
        for name, cases in seen.items():
            if name in own:
                own[name].load(dict(weights))
            else:
                simulation.network.load_state_dict(weights)
            _score_site(simulation, cases, "seen", bar, findings)
        by_site = policy(simulation) == "nearest"
        for role, sites in others.items():
            for cases in filter(None, sites.values()):
                found = nearest(simulation, weights, cases) if by_site else unseen_weights(simulation, weights)
                simulation.network.load_state_dict(found)
                _score_site(simulation, cases, role, bar, findings)
    return findings


def unseen_weights(simulation: Experiment, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The model as a site that took no part gets it.

    Entries that every source site keeps for itself (FedBN, or `federation.batch_norm: local`) are averaged over the
    sites by their number of images, as FedBN's author advises for external sites; in a real federation the sites would
    have to agree to send them once.
    """
    sites = [site for site in simulation.engine.members if site.local_entries()]
    if not sites:
        return dict(weights)
    images = torch.tensor([float(len(site.training)) for site in sites], dtype=torch.float64)
    return {**weights, **average([site.local_entries() for site in sites], images / images.sum())}


def boundary_distances(simulation: Experiment, weights: Mapping[str, Tensor]) -> dict[str, float]:
    """What `evaluation.boundary_distance` asks for, at each site that takes no part.

    Empty where it is not asked for, or no image has an outline. Source sites tell it when they validate.
    """
    task, onlooker = simulation.task, simulation.engine.validation_site
    if isinstance(task, Classification) or not task.evaluation.boundary_distance:
        return {}
    cases = {site: cases for site, cases in simulation.unseen.items() if cases}
    samples = {site: task.prepare(map(simulation.dataset.load, found)) for site, found in cases.items()}
    samples |= {onlooker.name: onlooker.samples} if onlooker else {}
    levels = next(iter(simulation.engine.members)).architecture.decoder_levels
    simulation.network.load_state_dict(unseen_weights(simulation, weights))
    found = {site: task.validate(simulation.network, images, levels) for site, images in samples.items()}
    return {site: facts["boundary_distance"] for site, facts in found.items() if "boundary_distance" in facts}


def _score_site(
    simulation: Experiment, cases: Sequence[Case], role: str, bar: tqdm, findings: EvaluationResult
) -> None:
    if not cases:  # a source site may have none for the test
        return
    network = _predictor(simulation, role)
    if isinstance(simulation.task, Classification):
        findings.rows.extend(_classify(simulation, simulation.task, network, cases, role, bar))
        return
    said: Counter[str] = Counter()
    for case in cases:
        volume = simulation.dataset.load(case)
        said.update(volume.notices)
        predicted = simulation.task.predict(network, volume)
        for index, structure in enumerate(simulation.task.structures):
            found = score(predicted[index], volume.mask[index].as_tensor(), volume.spacing_mm)
            findings.rows.append(
                {"site": case.site, "role": role, "patient": case.patient, "structure": structure, **asdict(found)}
            )
        if of := simulation.dataset.ratio_of:
            inner, outer = map(simulation.task.structures.index, of)
            pair = (vertical_ratio(masks[inner], masks[outer]) for masks in (volume.mask.as_tensor(), predicted))
            findings.ratios.append(ratio_row(case.site, role, case.patient, *pair))
        if role == "unseen":
            findings.masks[case.patient] = PackedMask.of(predicted)
        bar.update(1)
    _say(said, cases, role)


def _predictor(simulation: Experiment, role: str) -> nn.Module:
    """The network, or a copy of it that adapts to the site it is about to see, or normalises by each batch of it."""
    evaluation = simulation.task.evaluation
    if not evaluation.tent:
        by_batch = role != "seen" and policy(simulation) == "batch_stats"
        return with_batch_statistics(simulation.network) if by_batch else simulation.network
    sigmoid = not isinstance(simulation.task, Classification)
    return Tent(simulation.network, evaluation.tent_learning_rate, sigmoid)


def _classify(
    simulation: Experiment, task: Classification, network: nn.Module, cases: Sequence[Case], role: str, bar: tqdm
) -> Rows:
    """A row an image."""
    rows: Rows = []
    said: Counter[str] = Counter()

    def read(case: Case) -> MetaTensor:
        notices: list[str] = []
        image = simulation.dataset.read_image(case, notices)
        said.update(notices)
        return image

    # In no order that tells the class, as Tent and batch statistics see the images beside each other.
    cases = sorted(cases, key=lambda case: stream_number(0, "order", case.site, case.patient))
    for indices in even_parts(torch.arange(len(cases))):
        part = [cases[index] for index in indices.tolist()]
        rows += [
            case_row(case.site, role, case.patient, case.subject, case.label, found.tolist(), task.classes)
            for case, found in zip(part, task.probabilities(network, task.prepare(part, read)), strict=True)
        ]
        bar.update(len(part))
    _say(said, cases, role)
    return rows


def _say(notices: Counter[str], cases: Sequence[Case], role: str) -> None:
    """Those of source sites were said when they were read."""
    for notice, n in notices.items() if role == "unseen" else ():
        warnings.warn(f"{cases[0].site}: {n} of {len(cases)} images: {notice}", stacklevel=2)


@dataclass(frozen=True)
class PackedMask:
    """A mask of zeros and ones of any shape; outlines of organs take about a hundredth of its voxels in bytes."""

    shape: tuple[int, ...]
    packed: bytes

    @classmethod
    def of(cls, mask: Tensor) -> PackedMask:
        """mask: uint8 on any device, 0 or 1."""
        return cls(tuple(mask.shape), zlib.compress(np.packbits(mask.cpu().numpy()).tobytes(), level=1))

    def unpacked(self) -> Tensor:
        """As it was, uint8 on the CPU."""
        bits = np.frombuffer(zlib.decompress(self.packed), dtype=np.uint8)
        count = int(np.prod(self.shape))
        return torch.from_numpy(np.unpackbits(bits, count=count).reshape(self.shape))
