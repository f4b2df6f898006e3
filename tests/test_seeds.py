import pytest
import torch

from fedsim import seeds
from fedsim.seeds import seeded


def test_the_global_generator_is_seeded_for_a_moment() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(6)
    before = torch.random.get_rng_state()
    with seeded(5):
        assert torch.equal(torch.rand(3), expected)
    assert torch.equal(torch.random.get_rng_state(), before)


SECRET = 0x2A54B9D1C3E7F086


def test_a_secret_seed_draws_more_than_the_32_bits_that_torch_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Were torch's seed all, equal low halves of it would give equal noise."""
    assert torch.equal(
        *(torch.randn(3, generator=torch.Generator().manual_seed(s)) for s in (5, 5 + 2**40))
    )
    monkeypatch.setattr(seeds, "derive", lambda *_: 5)  # the low half alone
    one, other = (
        torch.randn(700, generator=seeds.generator(seed, "noise")) for seed in (SECRET, SECRET + 1)
    )
    assert not torch.isclose(one, other).any()
    assert torch.equal(one, torch.randn(700, generator=seeds.generator(SECRET, "noise")))
    small = [torch.randn(9, generator=seeds.generator(s, "noise")) for s in (0, 2**40)]
    assert torch.equal(*small)  # as before: results with such seeds stay as they are


def test_noise_of_a_secret_seed_is_normal_and_its_places_are_apart() -> None:
    first, second = (
        torch.randn(100_000, generator=seeds.generator(SECRET, "defense", 1, client))
        for client in (0, 1)
    )
    assert abs(float(first.mean())) < 0.02
    assert abs(float(first.std()) - 1) < 0.02
    assert abs(float((first * second).mean())) < 0.02
    order = torch.randperm(1000, generator=seeds.generator(SECRET, "partition"))
    assert order.sort().values.tolist() == list(range(1000))
