"""StableFDG (Park et al., NeurIPS 2023): train on features in shared and in new styles, with attention.

J. Park, D.-J. Han, J. Kim, S. Wang, C. G. Brinton, J. Moon: "StableFDG: Style and Attention Based Learning for
Federated Domain Generalization", NeurIPS 2023, https://arxiv.org/abs/2311.00227.

Idea: features are trained in the styles of other sites and in styles that no site has. An attention layer weights the
positions of the last feature map by what images of one class have in common. Before every round, a site sends one style
and receives one (4 C numbers for C channels of the first stage; ResNet18: 1,024 bytes). The weights include the
attention layer.
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
from medfed.core.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Ratio
from medfed.core.errors import UserError
from medfed.federation.local_round import Architecture, LocalRound, Output, SiteData, batches
from medfed.federation.message import State
from medfed.federation.method import (
    ALL_DIMENSIONS,
    EVERY_ROUND,
    MAX_FEATURE,
    NEVER,
    STYLE_RANGES,
    Effort,
    Method,
    SiteWeights,
    Tensors,
    has_too_few_patients,
)
from medfed.federation.sent import SITE_STYLE, Sent
from medfed.functional import feature_style
from medfed.functional.hooks import evaluation_mode, features_at, input_output_widths, replace_output
from medfed.functional.sampling import class_ids, draw_mixing_partners, draw_oversampled, draw_same_class
from medfed.functional.weights import select_prefix
from medfed.networks.parts.highlighter import NAME, Highlighter, QueryOf, Similarity, attach_highlighter
from medfed.networks.parts.style_layers import Stages

RECEIVED = "received/"  # prefix of tensors in the coordinator's memory
CLASSES = "classes"  # name of a tensor in a site's memory: (N,) int64, the classes of its training images
Change = Callable[[Tensor], Tensor]  # a function from feature maps to feature maps
MAX_BATCH = 64  # largest number of images whose first-stage features are computed together


@dataclass(frozen=True)
class StableFDG(Method):
    """FedAvg on features in the styles of other sites and in new styles, with an attention layer.

    Before each round, each participating site shares its style (step 1 of section 3.1): the mean and the standard
    deviation, over the site's images, of the channel means and of the channel standard deviations after the network's
    first stage (eq. 1-3). The coordinator passes each style on to one other site. In each batch of B images then follow

    - step 2, shifting: B / 2 images that differ most (k-means++) keep their style; the others take the received one;
    - step 3, oversampling: images of rare classes are added again, so that classes become as balanced as possible;
    - step 4, exploration: the styles of the added images are moved away from the batch's mean style (eq. 4-5);
    - step 5, mixing: all images mix their styles in pairs, as in MixStyle.

    Step 2 takes place after the first stage of the encoder, steps 3-5 after `stages`, each with `probability`.
    Attention (eq. 6-8) then weights the positions of the last feature map (`medfed.networks.parts.highlighter`); its
    output is added to the logits.

    Segmentation (ours; future work in the paper): masks are added together with their images, and the class of an image
    is the set of structures that it shows. Skip connections need the added images, too, so these are added after the
    first stage. There is no attention, because an image has more than one class.

    Volumes (ours): the statistics of a channel are those over all voxels of the patch.

    Departures. `clamp`, `similarity` and `second_sample` depart from the paper by default. In all presets, as in the
    public code: the noise of shifting is N(0, 1) times the received spread (in the paper N(0, own spread) times the
    received spread), a spread is a standard deviation instead of a variance, exploration takes place after the first
    active stage only, while later ones only mix (in the paper's text, each active stage explores), and without `clamp`
    step 5 mixes standard deviations that eq. 5 may make negative (in the text, those of the explored features, which
    are never negative). An image's own statistics are constants to the gradient (in the code, only in shifting).
    Variances are unbiased (eq. 2 divides by N), and k-means++ is its seeding alone (the paper has one iteration).
    Unlike in the code, styles come from images without augmentation, in evaluation mode, and only from sites of the
    round; the attention does not depend on the map's size (the code divides by 49); and only images of the batch are
    added (for a class with one image in the batch, the code adds an image of a second batch). The paper's schedules of
    the learning rate are settings of `training`.

    Readings: k-means++ selects samples (the paper has both "cluster centers" and "samples", the code centres); styles
    are explored away from the mean of the batch without the added images (s in eq. 4-5, as in the code; the text has
    the batch with them); shifting sets negative standard deviations to 0 after the noise; and for the "at least two
    samples" of appendix G, an image needs another one of its class, which is not its copy.

    Args:
        style: whether styles are shared, shifted, explored and mixed. false is an ablation of the paper's Table 3.
        attention: whether the attention layer is used. false is an ablation of the paper's Table 3;
            masks need false.
        similarity: similarity of queries and keys in the attention: "inner" is their inner product, as in eq. 8;
            "cosine" scales them to length 1 first, as in the authors' code, so that the attention does not depend on
            the scale of the features and differs by a factor of at most 7.4. No effect if `query_of` is "none".
        query_of: which image's query the attention uses in training. "both": the mean of the queries of the image and
            of another image of its class (eq. 8). "own" (self-attention) and "partner" (the other image's,
            cross-attention, eq. 6) are ablations of the paper's Table 15. "none": no query, so that the layer has the
            same number of weights but is no attention (Table 16). Predictions use the image's own query.
        second_sample: what happens if an image has no other image of its class in the batch. true draws a random image
            of this class from the site's training images, only for its query (appendix G), in evaluation mode. false
            uses the image itself or its copy, and saves a forward pass. No effect if `query_of` is "own" or "none". In
            both cases, an image that has others may draw its own copy (17 % do, for 32 images of 7 classes).
        level: factor by which the style of an added image is moved away from the batch's mean style (alpha in the
            paper), at least 0. 0 leaves the styles as they are. 3 in the paper.
        oversampling: number of images that are added to a batch to balance its classes, as a fraction of the batch's
            size, at least 0. 1 in the paper.
        balanced: true adds images of the rarest classes, false random ones, with replacement (the paper's Table 12).
        probability: probability of style shifting, and of exploration and mixing after each of the stages, in [0, 1].
            0.5 in the paper.
        mix: whether styles are mixed (step 5). false leaves only the exploration, as in the paper's Table 12.
        concentration: parameter of the Beta distribution of the mixing ratio, above 0. 0.1 in the paper.
        stages: the encoder's stages, from 1, after which styles are explored and mixed. 1 to 3 in the paper.
        received: number of other sites' styles that a site receives; each shifted image takes a random one of them. 1
            in the paper, 0 and 3 in its Table 10. 0 shares and shifts no styles.
        kept: which half of a batch keeps its style in the shift: "kmeans++" selects images whose styles differ most,
            "random" any images (the paper's Table 11).
        sharing: which styles a site receives: "random" those of the next sites in a random circle of the participating
            sites; "farthest" those most different from its own (Euclidean distance of means and standard deviations).
        dimension: number of channels of the attention's queries and keys (d in the paper), at least 1. 30 in the paper.
        clamp: whether negative standard deviations, which invert a channel, are set to 0 in exploration. With level 3,
            those below three quarters of the mean become negative. The paper does not discuss this.
        site_weights: weights of the sites in the average: "examples" (n_k / N for n_k images) or "uniform" (1 / K).
        min_patients: a site with fewer training patients than this shares no style, because its style would describe
            single patients. Such a site trains as usual. At least 1. Not in the paper.
    """

    style: bool = True
    attention: bool = True
    similarity: Similarity = "cosine"
    query_of: QueryOf = "both"
    second_sample: bool = False
    level: NonNegativeFloat = 3.0
    oversampling: NonNegativeFloat = 1.0
    balanced: bool = True
    probability: Ratio = 0.5
    mix: bool = True
    concentration: PositiveFloat = 0.1
    stages: Stages = (1, 2, 3)
    received: NonNegativeInt = 1
    kept: Literal["kmeans++", "random"] = "kmeans++"
    sharing: Literal["random", "farthest"] = "random"
    dimension: PositiveInt = 30
    clamp: bool = True
    site_weights: SiteWeights = "examples"
    min_patients: PositiveInt = 3

    dimensions: ClassVar[frozenset[int]] = ALL_DIMENSIONS

    def loss(self, local: LocalRound, batch: Batch) -> tuple[Tensor, Output]:
        """Return the task's loss of the batch and the added copies, in changed styles and with attention."""
        labels = class_ids(batch.label).cpu()
        added, changes = self._changes(local, labels) if self.style else (labels.new_empty(0), [])
        indices = torch.cat([torch.arange(len(labels)), added])  # of the batch, then of the added images
        with ExitStack() as stack:
            if self.attention:
                partners, second_features = self._partners(local, labels, indices)
                stack.enter_context(getattr(local.network, NAME).use_partners(partners, second_features))  # eq. 8
            for place, change in reversed(changes):  # each one before those that are entered already
                stack.enter_context(replace_output(local.network, {place: change}, first=True))
            output = local.forward(batch)
        indices = indices.to(local.device)
        moments = None if output.moments is None else output.moments[indices]
        output = replace(output, image=batch.image[indices], label=batch.label[indices], moments=moments)
        return local.task.loss(output.logits, output.label), output

    def _changes(self, local: LocalRound, labels: Tensor) -> tuple[Tensor, list[tuple[str, Change]]]:
        """Return indices (A,) of the images to add, and the random changes of the features after stages, in order."""
        rng, stage_names = local.rng, local.architecture.encoder_stages
        shifts, *active = (torch.rand(1 + len(self.stages), generator=rng) < self.probability).tolist()
        stages = sorted(stage for stage, is_active in zip(self.stages, active, strict=True) if is_active)
        n_added = round(self.oversampling * len(labels)) if stages else 0
        if self.balanced:  # step 3
            added = draw_oversampled(labels, n_added, rng)
        else:
            added = torch.randint(len(labels), (n_added,), generator=rng)
        changes: list[tuple[str, Change]] = []  # with the name of the stage's submodule
        if shifts and local.message.tensors:
            received, at_random = feature_style.SiteStyle(**local.message.tensors), self.kept == "random"
            shift = partial(feature_style.shift_style, received=received, rng=rng, at_random=at_random)
            changes.append((stage_names[0], shift))  # step 2
        if len(added) and local.architecture.decoder_levels:
            changes.append((stage_names[0], partial(_with_added, added=added)))
        for stage in stages:
            if stage == stages[0] and len(added):
                explore = partial(self._explore, rng=rng, n=len(labels), added=added)
                changes.append((stage_names[stage - 1], explore))  # steps 4-5
            elif self.mix:
                changes.append((stage_names[stage - 1], partial(self._mix, rng=rng)))  # step 5
        return added, changes

    def _partners(self, local: LocalRound, labels: Tensor, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Draw a partner for each of the N images of the batch and its copies, which `indices` (N,) names.

        Returns the partners, (N,), and the last feature maps of the A second samples, (A, C, H, W), or None. An index
        from N on names a second sample.
        """
        of_all = labels[indices]
        n, partners = len(of_all), draw_same_class(of_all, local.rng)
        is_alone = (labels[:, None] == labels).sum(dim=1) == 1  # a copy of an image is no other image
        without = is_alone[indices].nonzero()[:, 0]
        if not self._draws_second_samples or not len(without):
            return partners.to(local.device), None
        of_class = local.memory[CLASSES]
        drawn = []
        for label in of_all[without]:
            members = (of_class == label).nonzero()[:, 0]
            drawn.append(int(members[torch.randint(len(members), (), generator=local.rng)]))
        batch, place = local.training.batch(drawn).to(local.device), local.architecture.last_features
        if local.settings.augment:
            batch = local.task.augment(batch, local.rng)
        with evaluation_mode(local.network):
            second_features = local.forward(batch, (place,), local.parameters()).features[place]
        partners[without] = n + torch.arange(len(without))
        return partners.to(local.device), second_features

    @property
    def _draws_second_samples(self) -> bool:
        """True if images without a partner in the batch get one from the site's training images."""
        return self.attention and self.second_sample and self.query_of in ("both", "partner")

    def _mix(self, features: Tensor, rng: torch.Generator) -> Tensor:
        """Mix the style of each feature map (B, C, H, W) with that of a random other one, as MixStyle does."""
        mixing = draw_mixing_partners(len(features), self.concentration, rng)
        return feature_style.mix_styles(features, *mixing)  # step 5

    def _explore(self, features: Tensor, rng: torch.Generator, n: int, added: Tensor) -> Tensor:
        """Explore the added images (step 4) and, if `mix`, mix all (step 5); return (n + A, C, H, W).

        Rows of `features` from n on, which an earlier stage appended, are replaced.
        """
        if not self.mix:
            explored = feature_style.explore_styles(features[:n], added, self.level, self.clamp)  # eq. 4-5
            return torch.cat([features[:n], explored])
        mixing = draw_mixing_partners(n + len(added), self.concentration, rng)
        return feature_style.explore_and_mix_styles(features[:n], added, *mixing, self.level, self.clamp)  # eq. 4-5

    def share(self, site: SiteData, network: nn.Module) -> Tensors:
        """Return the style, (C,) each: `mean`, `std` and their deviations, `mean_spread`, `std_spread` (eq. 1-3)."""
        if has_too_few_patients(site.name, site.samples, self.min_patients, "style"):
            return {}
        device, styles = next(network.parameters()).device, []
        for batch in batches(site.samples, MAX_BATCH):
            image = site.task.standardise(batch.image.to(device), batch.moments)
            with torch.no_grad():
                features = features_at(network, site.architecture.encoder_stages[0], image)
                styles.append(feature_style.feature_mean_std(features))  # eq. 1
        means, stds = (torch.cat(moment).cpu() for moment in zip(*styles, strict=True))
        style = feature_style.compute_site_style(means, stds)._asdict()  # eq. 2-3
        site.n_patients.update(dict.fromkeys(style, site.samples.n_patients))
        return style

    def combine(self, state: State, shared: Mapping[str, Tensors], rng: torch.Generator) -> Tensors:
        """Choose the R = `received` styles of others for each site: `received/SITE/NAME`, (R, C)."""
        senders = sorted(site for site, style in shared.items() if style)
        order = [senders[i] for i in torch.randperm(len(senders), generator=rng).tolist()]  # step 1
        without_style = [site for site in sorted(shared) if not shared[site]]
        position = {site: order.index(site) for site in senders} | {site: i for i, site in enumerate(without_style)}
        memory: Tensors = {}
        for site in sorted(shared):
            sources = self._sources(site, order, position[site], shared)[: self.received]
            for name in shared[sources[0]] if sources else ():
                memory[f"{RECEIVED}{site}/{name}"] = torch.stack([shared[source][name] for source in sources])
        return memory

    def _sources(self, site: str, order: list[str], place: int, shared: Mapping[str, Tensors]) -> list[str]:
        """Return the other sites in the order in which `site`, at `place` in the circle `order`, gets their styles."""
        if self.sharing == "farthest" and shared[site]:
            styles = {other: torch.cat([shared[other]["mean"], shared[other]["std"]]) for other in order}
            distance = {other: float((style - styles[site]).norm()) for other, style in styles.items()}
            return sorted((other for other in order if other != site), key=lambda other: (-distance[other], other))
        start = place % max(1, len(order))
        return [other for other in order[start:] + order[:start] if other != site]

    def broadcast(self, state: State, site: str) -> Tensors:
        """Send a site its R styles, (R, C)."""
        return select_prefix(state.memory, f"{RECEIVED}{site}/")

    def wrap_network(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """Add the attention layer."""
        n_stages = len(architecture.encoder_stages)
        if self.style and max(self.stages) > n_stages:
            raise UserError(
                f"method.stages: got {list(self.stages)}, but this network has only the stages 1 to {n_stages}; remove "
                "all other numbers"
            )
        if self.attention:
            if architecture.decoder_levels:
                raise UserError(
                    "method.attention: StableFDG's attention needs one class per image, but this network predicts "
                    "masks; set method.attention to false (method.style still works)"
                )
            head = network.get_submodule(architecture.head)
            if isinstance(network.get_submodule(architecture.embedding), nn.Linear):
                raise UserError(
                    "method.attention: StableFDG needs a network without an embedding layer before the classifier; set "
                    "network.embedding_size to 0, or method.attention to false"
                )
            widths = input_output_widths(head)
            highlighter = Highlighter(*widths, self.dimension, self.similarity, self.query_of)
            attach_highlighter(network, architecture.last_features, architecture.head, highlighter)
        return network

    def on_round_start(self, local: LocalRound) -> None:
        """Store the classes of the site's training images, from which second samples are drawn."""
        if self._draws_second_samples and CLASSES not in local.memory:
            labels = [class_ids(batch.label) for batch in batches(local.training, MAX_BATCH)]
            local.memory[CLASSES] = torch.cat(labels).cpu()

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "medfed": {},
        "paper": {
            "clamp": False,  # eq. 4-5 have no limit
            "similarity": "inner",  # eq. 8
            "second_sample": True,  # appendix G
        },
        # The authors' code. There, an image without a partner uses the query of the second sample alone, which passes
        # through the network in training mode; here the mean of eq. 8 is used.
        "released": {"clamp": False, "second_sample": True, "site_weights": "uniform"},
    }
    _style = SITE_STYLE._replace(received="of other sites")
    _spread = Sent(
        "how much styles vary at the site", "How similar the site's images are, but no single image.", "of other sites"
    )
    sent: ClassVar[Mapping[str, Sent]] = {"mean": _style, "std": _style, "mean_spread": _spread, "std_spread": _spread}
    reads_features: ClassVar[bool] = True

    @property
    def shares(self) -> str:
        return EVERY_ROUND if self.style and self.received else NEVER

    statistic_ranges = {**STYLE_RANGES, "mean_spread": (0.0, MAX_FEATURE), "std_spread": (0.0, MAX_FEATURE)}

    def effort(self, n_sites: int) -> Effort:
        """Count added copies in every step; by default, 12.5 % of the steps have no active stage and add none."""
        adds = self.style and self.probability > 0
        return Effort(images=1 + self.oversampling if adds else 1)


def _with_added(features: Tensor, added: Tensor) -> Tensor:
    """Append the features of the added images (A,) to those of the batch, (B + A, C, H, W)."""
    return torch.cat([features, features[added.to(features.device)]])
