"""A sentence grown by its likelihood where white noise hides every layer."""

import pytest
import torch

from attacks.base import Job
from attacks.engine.beam import Prefixes
from attacks.proofs.gradient_match import GradientMatcher
from attacks.span.causal.likelihood_growth import LikelihoodGrowth, TextCovariance, white_noise
from attacks.span.causal.tree import Tree, sampled
from attacks.span.span import Span
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.soft_traces import soft_traces
from fedsim.tasks.text import TextTask
from tests.attacks.victims import Victim, lines, overlap

NOISE: dict[str, object] = {"name": "gaussian_noise", "std": 0.02}


def grown(victim: Victim, row: int) -> tuple[LikelihoodGrowth, list[int]]:
    seen, truth = victim.capture([row], NOISE)
    assert isinstance(victim.task, TextTask)
    match = GradientMatcher.of(seen, victim.task, torch.device("cpu"), signs=False)
    start, end = victim.task.tokens([""])[0]
    drawn = sampled(match.model.network, [start], torch.Generator().manual_seed(0))
    tree, network = Tree([start], end, 24, Job()), match.model.network
    return LikelihoodGrowth(tree, network, match, drawn), lines(truth)[0]


@pytest.mark.slow
def test_likelihoods_are_those_of_the_whole_gradient(gpt2: Victim) -> None:
    growth, line = grown(gpt2, 5)
    ids = torch.tensor([line])
    words = len(line) - 1
    gradient = growth.match.gradient(ids[0])
    for roots, shift in ((growth.white, growth.plain), (growth.rest, growth.shift)):
        white = {name: roots(name, value) for name, value in gradient.items()}
        square = words**2 * sum(float(value.square().sum()) for value in white.values())
        assert float(growth.squares(ids, roots)) == pytest.approx(square, rel=1e-3)
        inner = words * sum(
            float((roots(name, value) * white[name]).sum())
            for name, value in growth.match.update.items()
        )
        linear = shift.logs(ids)[1][0, :-1].gather(1, ids[0, 1:, None]).sum()
        assert float(linear) == pytest.approx(inner, rel=0.02)


@pytest.mark.slow
def test_next_words_are_weighed_by_what_the_prefix_leaves(gpt2: Victim) -> None:
    growth, line = grown(gpt2, 5)
    ranks = []
    for size in range(4, 12):
        ids, word = torch.tensor([line[:size]]), line[size]
        text, linear = growth.shift.next_logs(ids)
        begun = growth.match.gradient(ids[0])
        longer = growth.match.gradient(torch.tensor(line[: size + 1]))
        overlap = sum(
            float((growth.rest(n, longer[n] * size - value) * growth.rest(n, value)).sum())
            for n, value in ((name, (size - 1) * value) for name, value in begun.items())
        )
        rest = growth._residual(ids[0]).next_logs(ids)[1][0, word]
        assert float(linear[0, word] - rest) == pytest.approx(growth.scale * overlap, rel=0.05)
        plain = text + growth.scale * linear - growth.scale**2 * growth.norms[1] / 2
        promised = text + growth._promise(Prefixes(ids, torch.zeros(1)), linear)
        ranks.append([int((gain > gain[:, word]).sum()) for gain in (plain, promised)])
    before, after = torch.tensor(ranks).float().log1p().mean(0)
    assert after < before - 0.1


def test_the_scale_of_texts_in_noise_is_measured() -> None:
    rng = torch.Generator().manual_seed(0)
    left, right = (torch.logspace(0, -3, size).diag() for size in (24, 60))
    covariance = TextCovariance({"a": left}, {"a": right * left.trace() / right.trace()})
    spread = (left.diagonal()[:, None] * right.diagonal() / right.trace()).sqrt()
    update = {"a": 3 * spread * torch.randn(24, 60, generator=rng)}
    update["a"] += 0.01 * torch.randn(24, 60, generator=rng)
    assert covariance.scale(update, 0.01) == pytest.approx(3, rel=0.1)
    noise = {"a": 0.01 * torch.randn(24, 60, generator=rng)}
    assert white_noise(noise) == pytest.approx(0.01, rel=0.1)
    assert covariance.scale(noise, 0.01) < 0.1


@pytest.mark.slow
def test_words_are_read_where_no_layer_stands_out(gpt2: Victim) -> None:
    shares, chance = [], []
    assert isinstance(gpt2.task, TextTask)
    for row in (5, 7):
        seen, truth = gpt2.capture([row], NOISE)
        traces = soft_traces(AttackedModel.of(seen, gpt2.task))
        assert traces.first is None
        assert not traces.near
        assert not traces.later
        (guess,) = Span().reconstruct([seen], gpt2.task, [torch.Generator().manual_seed(0)], Job())
        shares.append(overlap(guess, lines(truth)))
        chance.append(overlap(guess, lines(gpt2.capture([row + 1])[1])))
    assert min(shares) > max(chance)
    assert sum(shares) > 0.4
