"""StableFDG (Park et al., NeurIPS 2023): train on other hospitals' styles and beyond, and look where a class agrees."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from medfed.core.batch import Batch
from medfed.core.errors import UserError
from medfed.federation.local_round import Architecture, LocalRound, Output, SiteData
from medfed.federation.message import State
from medfed.federation.method import EVERY_ROUND, NEVER, Method, Tensors
from medfed.functional.draws import balance, draw_mixing, same_class
from medfed.functional.feature_style import SiteStyle, explore_and_mix, mix, moments, shared_style, shift_style
from medfed.functional.hooks import capture_features, features_at, replace_output
from medfed.networks.highlighter import NAME, Highlighter, attach

RECEIVED = "received/"
AT_ONCE = 64  # images whose first-stage features are looked at together


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
    level: float = 3.0
    oversampling: float = 1.0
    probability: float = 0.5
    concentration: float = 0.1
    stages: tuple[int, ...] = (1, 2, 3)
    received: int = 1
    sharing: str = "random"
    dimension: int = 30
    clamp: bool = True
    site_weights: str = "examples"
    min_patients: int = 3

    reads_features: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {"clamp": False},
        "released": {"clamp": False, "site_weights": "uniform"},
    }

    def __post_init__(self) -> None:
        for name, known in (("sharing", ("random", "farthest")), ("site_weights", ("examples", "uniform"))):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got '{getattr(self, name)}'")
        for name in ("received", "dimension", "min_patients"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("level", "oversampling"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability must lie in [0, 1], got {self.probability}")
        if self.concentration <= 0:
            raise ValueError(f"concentration must be above 0, got {self.concentration}")
        if not self.stages or min(self.stages) < 1 or len(set(self.stages)) < len(self.stages):
            raise ValueError(f"stages must be different numbers from 1, got {list(self.stages)}")

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
            highlighter = Highlighter(head.in_features, head.out_features, self.dimension)
            attach(network, architecture.last_features, architecture.head, highlighter)
        return network

    @property
    def shares(self) -> str:
        return EVERY_ROUND if self.style else NEVER

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """mean, std and their spreads mean_spread, std_spread, each (C,): Phi_n of section 3.1."""
        if site.samples.n_patients < self.min_patients:
            warnings.warn(
                f"{site.name}: has {site.samples.n_patients} training patients and shares no style, as "
                f"method.min_patients is {self.min_patients}; it trains on the others' styles all the same",
                stacklevel=2,
            )
            return {}
        device, found = next(network.parameters()).device, []
        for part in torch.arange(len(site.samples)).split(AT_ONCE):
            image = site.task.standardise(site.samples.batch(part.tolist()).image.to(device))
            with torch.no_grad():
                found.append(moments(features_at(network, site.architecture.encoder_stages[0], image)))
        return shared_style(*(torch.cat(one).cpu() for one in zip(*found, strict=True)))._asdict()

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
        prefix = f"{RECEIVED}{site}/"
        return {n.removeprefix(prefix): entry for n, entry in state.memory.items() if n.startswith(prefix)}

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        labels = _classes(batch.label).cpu()
        added, changes = self._changes(local, labels) if self.style else (labels.new_empty(0), {})
        chosen = torch.cat([torch.arange(len(labels)), added])
        with ExitStack() as stack:
            stack.enter_context(replace_output(local.network, changes, first=True))
            if self.attention:
                partners = same_class(labels[chosen], local.rng).to(local.device)
                stack.enter_context(getattr(local.network, NAME).paired(partners))
            output = local.forward(batch)
        chosen = chosen.to(local.device)
        output = replace(output, image=batch.image[chosen], label=batch.label[chosen])
        return local.task.loss(output.logits, output.label), output

    def score_maps(self, network: nn.Module, architecture: Architecture, image: Tensor) -> Tensor | None:
        if not self.attention:
            return None
        with torch.no_grad(), capture_features(network, (architecture.last_features,)) as seen:
            network(image)
            return getattr(network, NAME).scores(seen[architecture.last_features])

    def _sources(self, site: str, order: list[str], place: int, shared: Mapping[str, Tensors]) -> list[str]:
        """The other sites, that to be received from first; `place` is where the site stands in the circle."""
        if self.sharing == "farthest" and shared[site]:
            own = torch.cat([shared[site]["mean"], shared[site]["std"]])
            distance = {o: float((torch.cat([shared[o]["mean"], shared[o]["std"]]) - own).norm()) for o in order}
            return sorted((other for other in order if other != site), key=lambda other: (-distance[other], other))
        start = place % max(1, len(order))
        return [other for other in order[start:] + order[:start] if other != site]

    def _changes(self, local: LocalRound, labels: Tensor) -> tuple[Tensor, dict[str, Callable[[Tensor], Tensor]]]:
        """The samples to add to a batch, and what happens behind which stage, drawn for this batch."""
        rng, places = local.rng, local.architecture.encoder_stages
        shifts, *active = (torch.rand(1 + len(self.stages), generator=rng) < self.probability).tolist()
        stages = sorted(stage for stage, on in zip(self.stages, active, strict=True) if on)
        added = balance(labels, round(self.oversampling * len(labels)) if stages else 0, rng)
        steps: dict[str, list[Callable[[Tensor], Tensor]]] = {}
        if shifts and local.message.tensors:
            style = SiteStyle(**local.message.tensors)
            steps.setdefault(places[0], []).append(lambda features: shift_style(features, style, rng))
        if len(added) and local.architecture.decoder_levels:
            steps.setdefault(places[0], []).append(lambda f: torch.cat([f, f[added.to(f.device)]]))
        for stage in stages:
            change = self._mix if stage > stages[0] or not len(added) else self._extend(len(labels), added)
            steps.setdefault(places[stage - 1], []).append(lambda features, change=change: change(features, rng))
        return added, {place: _chain(functions) for place, functions in steps.items()}

    def _mix(self, features: Tensor, rng: torch.Generator) -> Tensor:
        return mix(features, *draw_mixing(len(features), self.concentration, rng))

    def _extend(self, n: int, added: Tensor) -> Callable[[Tensor, torch.Generator], Tensor]:
        """Of maps of a batch of n, whether or not the added ones are there already: all of them, explored and mixed."""

        def change(features: Tensor, rng: torch.Generator) -> Tensor:
            mixing = draw_mixing(n + len(added), self.concentration, rng)
            return explore_and_mix(features[:n], added, *mixing, self.level, self.clamp)

        return change


def _chain(functions: list[Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    def run(features: Tensor) -> Tensor:
        for function in functions:
            features = function(features)
        return features

    return run


def _classes(label: Tensor) -> Tensor:
    """(B,): classes as they are; of masks (B, S, H, W), a number for the set of structures that are there."""
    if label.ndim == 1:
        return label
    present = label.flatten(2).any(dim=2)
    return (present.long() << torch.arange(present.shape[1], device=present.device)).sum(dim=1)
