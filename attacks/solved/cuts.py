"""Thresholds of the attacks that solve for the inputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SolvedCuts:
    """Thresholds of ``closed_form``, ``embedding_rows``, ``patch_rows``, ``ratio`` and ``spear``.

    Attributes:
        closed_form_floor: ``closed_form``: outputs smaller than this are lost in the errors of the
            layers above.
        closed_form_values: ``closed_form``: most values of a layer's input; the dense equations of
            that many take 2 GB of float64.
        posterior_coarse: ``closed_form``: number of coefficients searched for first.
        posterior_fine: ``closed_form``: factor on that number where more detail can be seen.
        posterior_steps: ``closed_form``: most steps of Gauss-Newton at each of these.
        posterior_gain: ``closed_form``: relative gain of a step below which the search ends.
        left_out: ``closed_form``: variance of the coefficients left out, as a share of the
            expected error, below which more detail is not searched for.
        informed: ``closed_form``: share of the prior's error below which the expected error of
            an estimate counts as knowledge.
        explained: ``closed_form``: relative error of a solution's gradient below which the update
            is not said to tell nothing; halved and doubled, no test changes.
        exact_share: ``closed_form``: error of a kept coordinate or a sign, by its tensor's root
            mean square.
        sign_weight: ``closed_form``: weight of a sign, since errors of what is left out are shared
            by many signs.
        pruned_softness: ``closed_form``: by how much a zeroed coordinate may exceed the smallest
            one kept, as a share of it.
        pruned_excess: ``closed_form``: factor on the smallest kept magnitude above which a zeroed
            coordinate was not among the smallest.
        pruned_large: ``closed_form``: share of such coordinates from which zeros are a random
            choice.
        label_sigmas: ``closed_form``: standard deviations between two classes' slopes below which
            both are tried.
        clipped_scale: ``closed_form``: largest first value of a fitted scale.
        fitted_scale: ``closed_form``: by how much a fitted scale must improve the objective, and a
            class or scale to rule out another.
        solved_image: ``closed_form`` and ``patch_rows``: largest relative error of the message at
            which a proof is sharp: a pixel that is off by five bytes shows from about 2e-5 on.
        unpruned_share: ``embedding_rows``: least share of nonzero coordinates in position rows
            that were not pruned; with fewer, no sentence is read.
        missed_row: ``embedding_rows``: largest distance of a word row from what a sentence makes
            of the position rows, in units of their smallest singular value; below one half, no
            other sentence comes as near.
        patch_singular_value: ``patch_rows``: smallest singular value of the position rows, as a
            share of the largest, that is more than rounding.
        pixel_error: ``ratio`` and ``spear``: largest error of an accepted or certified pixel in
            [0, 1]; it still rounds to the right byte.
        ratio_sigmas: ``ratio``: standard deviations of rounding by which a pixel or slope may be
            off.
        ratio_same_image: ``ratio``: root mean square distance below which two images are one.
        rank_fall: ``spear``: least ratio of the last singular value of the examples to the first
            of rounding.
        silent_sigmas: ``spear``: standard deviations of rounding below which a unit's slope counts
            as silent.
        silent_slack: ``spear``: factor on that threshold for a unit whose input is negative.
        direction_error: ``spear``: largest error of a sampled direction that is worth refining.
        same_sampled: ``spear``: cosine from which two directions are one before refinement.
        same_refined: ``spear``: cosine from which two directions are one after refinement.
        independent: ``spear``: least distance of a direction from the span of those chosen before.
        slopes_outside: ``spear``: largest part of an image's slopes outside the span of the
            batch's, as a share of their norm.
        in_span_agreement: ``spear``: least agreement between silent units and negative inputs of
            an image that counts as in the span.
        provable_agreement: ``spear``: least mean agreement that is worth the proof by gradient;
            units that switch between local steps lower it.
        known_rank_fall: ``spear``: the same ratio, where the number of examples is known and noise
            or a coarse wire fills the rest of the spectrum; pure noise gives 1.0.
        explained_activations: ``spear``: share of an example's activations left unexplained below
            which only rounding is left.
        unexplained_activations: ``spear``: largest such share of an example under noise; false
            minima of a crowded batch start at about 0.12.
        dictionary_patience: ``spear``: starts that fail in succession before the search for
            activations ends.
        units_per_example: ``spear``: units of the first layer that an example needs for its
            activations to be found in seconds.
        patience: ``spear``: passes without a better agreement after which the search ends, once
            a proof was tried.
    """

    closed_form_floor: float = 1e-6
    closed_form_values: int = 16_384
    posterior_coarse: int = 384
    posterior_fine: int = 4
    posterior_steps: int = 12
    posterior_gain: float = 3e-4
    left_out: float = 0.6
    informed: float = 0.95
    explained: float = 0.1
    exact_share: float = 0.01
    sign_weight: float = 0.1
    pruned_softness: float = 0.3
    pruned_excess: float = 3.0
    pruned_large: float = 0.2
    label_sigmas: float = 4.0
    clipped_scale: float = 0.7
    fitted_scale: float = 10.0
    solved_image: float = 1e-5
    missed_row: float = 0.01
    unpruned_share: float = 0.99
    patch_singular_value: float = 1e-7
    pixel_error: float = 0.5 / 255
    ratio_sigmas: float = 30.0
    ratio_same_image: float = 0.01
    rank_fall: float = 10.0
    silent_sigmas: float = 10.0
    silent_slack: float = 30.0
    direction_error: float = 0.03
    same_sampled: float = 1 - 1e-4
    same_refined: float = 1 - 1e-5
    independent: float = 3e-3
    slopes_outside: float = 1e-3
    in_span_agreement: float = 0.99
    provable_agreement: float = 0.85
    known_rank_fall: float = 1.25
    explained_activations: float = 1e-3
    unexplained_activations: float = 0.1
    dictionary_patience: int = 30
    units_per_example: int = 8
    patience: int = 40


CUTS = SolvedCuts()
