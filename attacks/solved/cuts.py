"""Thresholds of the attacks that solve for the inputs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SolvedCuts:
    """Of ``closed_form``, ``embedding_rows``, ``patch_rows``, ``ratio`` and ``spear``."""

    # ``closed_form``: outputs smaller than this are lost in the errors of the layers above.
    closed_form_floor: float = 1e-6
    # ``closed_form``: most values of a layer's input; the dense equations of that many take 2
    # GB of float64.
    closed_form_values: int = 16_384
    posterior_coarse: int = 384  # ``closed_form``: number of coefficients searched for first
    posterior_fine: int = 4  # ``closed_form``: factor on that number where more detail can be seen
    posterior_steps: int = 12  # ``closed_form``: most steps of Gauss-Newton at each of these
    # ``closed_form``: relative gain of a step below which the search ends.
    posterior_gain: float = 3e-4
    # ``closed_form``: variance of the coefficients left out, as a share of the expected error,
    # below which more detail is not searched for.
    left_out: float = 0.6
    # ``closed_form``: share of the prior's error below which the expected error of an estimate
    # counts as knowledge.
    informed: float = 0.95
    # ``closed_form``: relative error of a solution's gradient below which the update is not
    # said to tell nothing; halved and doubled, no test changes.
    explained: float = 0.1
    # ``closed_form``: error of a kept coordinate or a sign, by its tensor's root mean square.
    exact_share: float = 0.01
    # ``closed_form``: weight of a sign, since errors of what is left out are shared by many
    # signs.
    sign_weight: float = 0.1
    # ``closed_form``: by how much a zeroed coordinate may exceed the smallest one kept, as a
    # share of it.
    pruned_softness: float = 0.3
    # ``closed_form``: factor on the smallest kept magnitude above which a zeroed coordinate was
    # not among the smallest.
    pruned_excess: float = 3.0
    # ``closed_form``: share of such coordinates from which zeros are a random choice.
    pruned_large: float = 0.2
    # ``closed_form``: standard deviations between two classes' slopes below which both are
    # tried.
    label_sigmas: float = 4.0
    clipped_scale: float = 0.7  # ``closed_form``: largest first value of a fitted scale
    # ``closed_form``: by how much a fitted scale must improve the objective, and a class or
    # scale to rule out another.
    fitted_scale: float = 10.0
    # ``closed_form`` and ``patch_rows``: largest relative error of the message at which a proof
    # is sharp: a pixel that is off by five bytes shows from about 2e-5 on.
    solved_image: float = 1e-5
    # ``embedding_rows``: largest distance of a word row from what a sentence makes of the
    # position rows, in units of their smallest singular value; below one half, no other
    # sentence comes as near.
    missed_row: float = 0.01
    # ``embedding_rows``: least share of nonzero coordinates in position rows that were not
    # pruned; with fewer, no sentence is read.
    unpruned_share: float = 0.99
    # ``patch_rows``: smallest singular value of the position rows, as a share of the largest,
    # that is more than rounding.
    patch_singular_value: float = 1e-7
    # ``ratio`` and ``spear``: largest error of an accepted or certified pixel in [0, 1]; it
    # still rounds to the right byte.
    pixel_error: float = 0.5 / 255
    # ``ratio``: standard deviations of rounding by which a pixel or slope may be off.
    ratio_sigmas: float = 30.0
    # ``ratio``: root mean square distance below which two images are one.
    ratio_same_image: float = 0.01
    # ``spear``: least ratio of the last singular value of the examples to the first of
    # rounding.
    rank_fall: float = 10.0
    # ``spear``: standard deviations of rounding below which a unit's slope counts as silent.
    silent_sigmas: float = 10.0
    # ``spear``: factor on that threshold for a unit whose input is negative.
    silent_slack: float = 30.0
    # ``spear``: largest error of a sampled direction that is worth refining.
    direction_error: float = 0.03
    # ``spear``: cosine from which two directions are one before refinement.
    same_sampled: float = 1 - 1e-4
    # ``spear``: cosine from which two directions are one after refinement.
    same_refined: float = 1 - 1e-5
    # ``spear``: least distance of a direction from the span of those chosen before.
    independent: float = 3e-3
    # ``spear``: largest part of an image's slopes outside the span of the batch's, as a share
    # of their norm.
    slopes_outside: float = 1e-3
    # ``spear``: least agreement between silent units and negative inputs of an image that
    # counts as in the span.
    in_span_agreement: float = 0.99
    # ``spear``: least mean agreement that is worth the proof by gradient; units that switch
    # between local steps lower it.
    provable_agreement: float = 0.85
    # ``spear``: the same ratio, where the number of examples is known and noise or a coarse
    # wire fills the rest of the spectrum; pure noise gives 1.0.
    known_rank_fall: float = 1.25
    # ``spear``: share of an example's activations left unexplained below which only rounding is
    # left.
    explained_activations: float = 1e-3
    # ``spear``: largest such share of an example under noise; false minima of a crowded batch
    # start at about 0.12.
    unexplained_activations: float = 0.1
    # ``spear``: starts that fail in succession before the search for activations ends.
    dictionary_patience: int = 30
    # ``spear``: units of the first layer that an example needs for its activations to be found
    # in seconds.
    units_per_example: int = 8
    # ``spear``: passes without a better agreement after which the search ends, once a proof was
    # tried.
    patience: int = 40


CUTS = SolvedCuts()
