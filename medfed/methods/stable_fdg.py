"""StableFDG (Park et al., NeurIPS 2023): train on other hospitals' styles and beyond, and look where a class agrees.

J. Park, D.-J. Han, J. Kim, S. Wang, C. G. Brinton, J. Moon: "StableFDG: Style and Attention Based Learning for
Federated Domain Generalization", NeurIPS 2023, https://arxiv.org/abs/2311.00227. Idea: train on features in the styles
of other sites and beyond, and weigh the last feature map by what images of one class have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, Ratio
from medfed.core.errors import UserError
from medfed.federation.local_round import Architecture, LocalRound, Output, SiteData, batches
from medfed.federation.message import State
from medfed.federation.method import EVERY_ROUND, NEVER, Method, SiteWeights, Tensors, has_too_few_patients
from medfed.functional.feature_style import (
    SiteStyle,
    compute_site_style,
    explore_and_mix_styles,
    feature_mean_std,
    mix_styles,
    shift_style,
)
from medfed.functional.hooks import capture_features, features_at, input_output_widths, replace_output
from medfed.functional.sampling import class_ids, draw_mixing_partners, draw_oversampled, draw_same_class
from medfed.functional.weights import select_prefix
from medfed.networks.highlighter import NAME, Highlighter, attach_highlighter
from medfed.networks.style_layers import Stages

RECEIVED = "received/"
Change = Callable[[Tensor], Tensor]  # of feature maps
MAX_BATCH = 64  # images whose first-stage features are computed together


@dataclass(frozen=True)
class StableFDG(Method):
    """Style and attention based learning.

    Before every round each site that takes part shares a style: of the channels' means and deviations after the
    network's first stage, the mean and the spread over its images (4 C numbers; ResNet18: 1,024 bytes), taken in
    evaluation mode and without augmentation. The coordinator passes each on to one other site. Of a batch

    1. half (chosen by k-means++ to differ most) keep their style, the others take the received one (eq. 1-3),
    2. samples are added, so that the classes become as even as possible, and pushed away from the mean style of the
       batch by `level` (eq. 4), into styles that no site has,
    3. all mix their styles in pairs (eq. 5),

    each with probability one half, at the seams between the network's stages. Then attention weighs the last feature
    map by what images of one class have in common (`medfed.networks.highlighter`).

    Args:
        style, attention: the two halves of the method; either alone is an ablation of the paper's Table 3.
        level: alpha, how far exploration goes; 0 leaves the styles where they are.
        oversampling: samples added, as a share of the batch.
        probability: p, of shifting, and of exploration and mixing at each of the stages.
        concentration: of the Beta distribution that mixing ratios come from.
        stages: numbers of the stages behind which styles are explored and mixed, from 1.
        received: styles of other sites that a site gets; each shifted sample takes one of them at random.
        sharing: "random": the participants stand in a random circle and each gets the style of the next (one to one,
            never its own), or "farthest": the style most unlike its own.
        dimension: d, of the attention's queries and keys.
        clamp: keep deviations at least 0 while exploring. With level 3 the formula is negative wherever a deviation is
            below three quarters of the mean one, which mirrors the channel.
        site_weights: "examples" (n_k / N), or "uniform".
        min_patients: a site with fewer training patients shares no style: it would be that of single people.

    Where paper and public code differ, this is the paper, except: the noise of shifting is N(0, 1) times the spread
    (the paper multiplies by it twice), the spread is a deviation rather than a variance, queries and keys are
    normalised, and exploration happens behind the first active stage only (later ones mix): these are the code's. The
    code also takes cluster centres instead of samples, shares styles of augmented images in training mode, asks sites
    that do not take part, and divides by 49 whatever the size of the map; we do not. The cosine schedule is
    `training.schedule`.

    Segmentation (ours; future work in the paper): the same at the encoder's stages, masks added with their images,
    where a "class" is the set of structures that an image shows. Skip connections carry the added samples too, so these
    enter behind the first stage. There is no attention, as an image has no one class.

        what                         medfed              paper               released
        negative deviations          set to 0            not discussed       kept
        weights of sites             by images           by images           uniform
    """

    style: bool = True
    attention: bool = True
    level: NonNegativeFloat = 3.0
    oversampling: NonNegativeFloat = 1.0
    probability: Ratio = 0.5
    concentration: PositiveFloat = 0.1
    stages: Stages = (1, 2, 3)
    received: PositiveInt = 1
    sharing: Literal["random", "farthest"] = "random"
    dimension: PositiveInt = 30
    clamp: bool = True
    site_weights: SiteWeights = "examples"
    min_patients: PositiveInt = 3

    reads_features: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {"clamp": False},
        "released": {"clamp": False, "site_weights": "uniform"},
    }

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """The network with a highlighter beside its head.

        Raises:
            UserError: if attention is wanted of a network that draws masks, or a stage that it does not have.
        """
        if self.style and max(self.stages) > len(architecture.encoder_stages):
            raise UserError(
                f"method.stages: {list(self.stages)}, but this network has {len(architecture.encoder_stages)} stages; "
                "leave out the later ones"
            )
        if self.attention:
            if architecture.decoder_levels:
                raise UserError(
                    "method.attention: StableFDG's attention needs one class an image, and this network draws masks; "
                    "set it to false (the style half works)"
                )
            head = network.get_submodule(architecture.head)
            if isinstance(network.get_submodule(architecture.embedding), nn.Linear):
                raise UserError(
                    "method.attention: StableFDG's classifier stands on the pooled features, and this network has a "
                    "layer between; set network.embedding_size to 0, or attention to false"
                )
            highlighter = Highlighter(*input_output_widths(head), self.dimension)
            attach_highlighter(network, architecture.last_features, architecture.head, highlighter)
        return network

    @property
    def shares(self) -> str:
        """Before every round, or never without the style half."""
        return EVERY_ROUND if self.style else NEVER

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """mean, std and their spreads mean_spread, std_spread, each (C,): Phi_n of section 3.1."""
        if has_too_few_patients(site.name, site.samples, self.min_patients, "style"):
            return {}
        device, styles = next(network.parameters()).device, []
        for batch in batches(site.samples, MAX_BATCH):
            image = site.task.standardise(batch.image.to(device))
            with torch.no_grad():
                styles.append(feature_mean_std(features_at(network, site.architecture.encoder_stages[0], image)))
        means, stds = (torch.cat(one).cpu() for one in zip(*styles, strict=True))
        return compute_site_style(means, stds)._asdict()

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """What each site will receive: `received` styles of others, (R, C) an entry."""
        givers = sorted(site for site, style in shared.items() if style)
        order = [givers[i] for i in torch.randperm(len(givers), generator=rng).tolist()]
        silent = [site for site in sorted(shared) if not shared[site]]
        places = {site: order.index(site) for site in givers} | {site: i for i, site in enumerate(silent)}
        memory: Tensors = {}
        for site in sorted(shared):
            sources = self._sources(site, order, places[site], shared)[: self.received]
            for name in shared[sources[0]] if sources else ():
                memory[f"{RECEIVED}{site}/{name}"] = torch.stack([shared[source][name] for source in sources])
        return memory

    def broadcast(self, state: State, site: str) -> Tensors:
        """The styles that the site receives, (R, C) an entry."""
        return select_prefix(state.memory, f"{RECEIVED}{site}/")

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """The task loss of the batch and the added samples, in changed styles and with attention."""
        labels = class_ids(batch.label).cpu()
        added, changes = self._changes(local, labels) if self.style else (labels.new_empty(0), {})
        chosen = torch.cat([torch.arange(len(labels)), added])
        with ExitStack() as stack:
            stack.enter_context(replace_output(local.network, changes, first=True))
            if self.attention:
                partners = draw_same_class(labels[chosen], local.rng).to(local.device)
                stack.enter_context(getattr(local.network, NAME).use_partners(partners))
            output = local.forward(batch)
        chosen = chosen.to(local.device)
        output = replace(output, image=batch.image[chosen], label=batch.label[chosen])
        return local.task.loss(output.logits, output.label), output

    def score_maps(self, network: nn.Module, architecture: Architecture, image: Tensor) -> Tensor | None:
        """Where the attention looks, (B, h, w)."""
        if not self.attention:
            return None
        with torch.no_grad(), capture_features(network, (architecture.last_features,)) as captured:
            network(image)
            return getattr(network, NAME).scores(captured[architecture.last_features])

    def _sources(self, site: str, order: list[str], place: int, shared: Mapping[str, Tensors]) -> list[str]:
        """The other sites, in the order in which a site receives their styles.

        place: where the site stands in the circle `order`.
        """
        if self.sharing == "farthest" and shared[site]:
            own = torch.cat([shared[site]["mean"], shared[site]["std"]])
            distance = {o: float((torch.cat([shared[o]["mean"], shared[o]["std"]]) - own).norm()) for o in order}
            return sorted((other for other in order if other != site), key=lambda other: (-distance[other], other))
        start = place % max(1, len(order))
        return [other for other in order[start:] + order[:start] if other != site]

    def _changes(self, local: LocalRound, labels: Tensor) -> tuple[Tensor, dict[str, Change]]:
        """The samples to add to a batch, and what happens behind which stage, drawn for this batch."""
        rng, places = local.rng, local.architecture.encoder_stages
        shifts, *active = (torch.rand(1 + len(self.stages), generator=rng) < self.probability).tolist()
        stages = sorted(stage for stage, on in zip(self.stages, active, strict=True) if on)
        added = draw_oversampled(labels, round(self.oversampling * len(labels)) if stages else 0, rng)
        steps: dict[str, list[Change]] = {}
        if shifts and local.message.tensors:
            shift = partial(shift_style, received=SiteStyle(**local.message.tensors), rng=rng)  # eq. 1-3
            steps.setdefault(places[0], []).append(shift)
        if len(added) and local.architecture.decoder_levels:
            steps.setdefault(places[0], []).append(partial(_with_added, added=added))
        for stage in stages:
            if stage == stages[0] and len(added):
                change = partial(self._extend, rng=rng, n=len(labels), added=added)
            else:
                change = partial(self._mix, rng=rng)
            steps.setdefault(places[stage - 1], []).append(change)
        return added, {place: partial(_chain, functions) for place, functions in steps.items()}

    def _mix(self, features: Tensor, rng: torch.Generator) -> Tensor:
        return mix_styles(features, *draw_mixing_partners(len(features), self.concentration, rng))  # eq. 5

    def _extend(self, features: Tensor, rng: torch.Generator, n: int, added: Tensor) -> Tensor:
        """The first n maps and the added samples, explored and mixed; whether or not `features` holds these already."""
        mixing = draw_mixing_partners(n + len(added), self.concentration, rng)
        return explore_and_mix_styles(features[:n], added, *mixing, self.level, self.clamp)  # eq. 4-5


def _chain(functions: list[Change], features: Tensor) -> Tensor:
    """The features after all functions, one after the other."""
    for function in functions:
        features = function(features)
    return features


def _with_added(features: Tensor, added: Tensor) -> Tensor:
    return torch.cat([features, features[added.to(features.device)]])
