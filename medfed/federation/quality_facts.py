"""The request "quality": sums from which the Dice at a hospital without labels is predicted, and facts about images.

After training, the coordinator asks each site once. The request contains the federated model and the local models of
the other sites. The site predicts its validation patients with all of them, and replies with sums over the patients:
of the agreement of the federated mask with the other sites' masks, and of its true Dice
(`medfed.functional.dice_prediction`). It also replies with mean and standard deviation of facts about its training
images (`medfed.functional.image_facts`). Numbers of single patients never leave the site.

The federated model was trained with the site's training patients, too. The sums are therefore measured without the
site's own local model, but not with a model that has never seen the site.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields

from torch import Tensor, nn

from medfed.federation.local_round import Samples, Task
from medfed.federation.message import Message
from medfed.functional.dice_prediction import PairSums, agreement, dice
from medfed.functional.image_facts import NAMES

QUALITY = "quality"  # the kind of the request and of its reply
IMAGE = "image"
SUMS = tuple(entry.name for entry in fields(PairSums))
WORDS = ("n", "mean", "sd")
MAX_STRUCTURES = 100


def quality_facts(
    task: Task,
    network: nn.Module,
    load: Callable[[Mapping[str, Tensor]], None],
    request: Message,
    training: Samples,
    validation: Samples | None,
    min_patients: int,
) -> dict[str, float]:
    """Compute the facts of a site's reply to a request of kind "quality".

    Args:
        task: the task, which is segmentation.
        network: the network of the site.
        load: loads weights into the network.
        request: the federated model as `weights`, and the local models of other sites as `tensors` with the names
            SITE/ENTRY.
        training: the site's training images.
        validation: its validation images with masks; None if it has none.
        min_patients: a number of fewer patients is left out.

    Returns:
        By structure K, "K.n", "K.x", "K.y", "K.xx", "K.xy", "K.yy" (`PairSums`); a mask of the federated model that is
        empty gives no pair. By name of a fact, "image.NAME.n", "image.NAME.mean" and "image.NAME.sd",
        the last two with four digits.
    """
    facts = _image_facts(task, training, min_patients)
    members = local_models_of(request.tensors)
    if validation is None or not members:
        return facts
    load(request.weights)
    masks = task.predict_samples(network, validation)
    of_members = []
    for weights in members.values():
        load({**request.weights, **weights})
        of_members.append(task.predict_samples(network, validation))
    references, (_, patients) = task.sample_masks(validation), task.describe_samples(validation)
    for structure in range(len(references[0])):
        pairs, of_patients = [], set()
        for case, (mask, reference) in enumerate(zip(masks, references, strict=True)):
            if bool(mask[structure].any()):
                others = [of_member[case][structure] for of_member in of_members]
                pairs.append((agreement(mask[structure], others), dice(mask[structure], reference[structure])))
                of_patients.add(patients[case])
        if len(of_patients) >= min_patients:
            sums = PairSums.of(pairs)
            facts |= {f"{structure}.{word}": getattr(sums, word) for word in SUMS}
    return facts


def _image_facts(task: Task, training: Samples, min_patients: int) -> dict[str, float]:
    """Return mean and standard deviation over the images of each fact that enough patients have."""
    values, patients = task.describe_samples(training)
    facts: dict[str, float] = {}
    for index, name in enumerate(NAMES):
        of_images = values[:, index]
        known = of_images.isfinite()
        of_patients = {patient for patient, is_known in zip(patients, known.tolist(), strict=True) if is_known}
        if len(of_patients) < min_patients:
            continue
        column = of_images[known]
        sd = float(column.std()) if len(column) > 1 else 0.0
        rounded = (float(f"{number:.4g}") for number in (float(column.mean()), sd))
        facts |= {f"{IMAGE}.{name}.{word}": number for word, number in zip(WORDS, (len(column), *rounded), strict=True)}
    return facts


def fact_names() -> frozenset[str]:
    """Return the names of all facts that a reply may hold."""
    of_structures = {f"{structure}.{word}" for structure in range(MAX_STRUCTURES) for word in SUMS}
    return frozenset(of_structures | {f"{IMAGE}.{name}.{word}" for name in NAMES for word in WORDS})


def local_models_of(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Return the weights of each site from tensors with the names SITE/ENTRY, sorted by site.

    Args:
        tensors: the tensors of a request, or the entries of a file.
    """
    by_site: dict[str, dict[str, Tensor]] = {}
    for name in sorted(tensors):
        site, _, entry = name.partition("/")
        by_site.setdefault(site, {})[entry] = tensors[name]
    return by_site


def with_site_names(local_models: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return weights by site as tensors with the names SITE/ENTRY, on the CPU.

    Args:
        local_models: by name of the site, its weights.
    """
    return {
        f"{site}/{name}": entry.detach().cpu().contiguous()
        for site, weights in local_models.items()
        for name, entry in weights.items()
    }
