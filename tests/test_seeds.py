import torch

from fedsim.seeds import seeded


def test_the_global_generator_is_seeded_for_a_moment() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(6)
    before = torch.random.get_rng_state()
    with seeded(5):
        assert torch.equal(torch.rand(3), expected)
    assert torch.equal(torch.random.get_rng_state(), before)
