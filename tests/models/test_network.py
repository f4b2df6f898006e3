import pytest
import torch
from torch.nn import functional as F

from fedsim.models import IMAGE_MODELS, MODELS, TEXT_MODELS
from fedsim.models.lenet import LeNet
from fedsim.models.mlp import MLP
from fedsim.models.network import ImageNetwork
from fedsim.models.resnets import ResidualBlock, ResNet18, ResNet20
from fedsim.seeds import generator

CIFAR = (3, 32, 32)


def make(name: str, shape: tuple[int, ...] = CIFAR, classes: int = 10) -> ImageNetwork:
    network = IMAGE_MODELS[name](shape, classes, **IMAGE_MODELS[name].options)
    network.initialise(generator(0, name))
    return network.eval()


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("lenet", CIFAR, 10, 15_826),
        ("lenet", CIFAR, 100, 85_036),  # DLG's own CIFAR-100 classifier
        ("lenet", (1, 28, 28), 10, 312 + 2 * 3_612 + 588 * 10 + 10),
        ("resnet20", CIFAR, 10, 269_722),
        ("vit", CIFAR, 10, 1_803_850),
        ("resnet20-group-norm", CIFAR, 10, 269_722),
        ("resnet20-norm-free", CIFAR, 10, 269_722),
        ("resnet18", (3, 224, 224), 1000, 11_689_512),  # torchvision's
        ("resnet18-group-norm", (3, 64, 64), 10, 11_181_642),
        ("mlp", CIFAR, 10, 3072 * 256 + 256 + 256 * 256 + 256 + 2_570),
    ],
)
def test_number_of_parameters(name: str, shape: tuple[int, ...], classes: int, count: int) -> None:
    network = make(name, shape, classes)
    assert sum(parameter.numel() for parameter in network.parameters()) == count


@pytest.mark.some(6)
@pytest.mark.parametrize("name", sorted(IMAGE_MODELS))
@pytest.mark.parametrize("shape", [CIFAR, (1, 28, 28), (3, 5, 9)])
def test_logits_and_second_derivatives_for_any_image(name: str, shape: tuple[int, ...]) -> None:
    network = make(name, shape, classes=7)
    images = torch.rand(2, *shape, generator=generator(1), requires_grad=True)
    logits = network(images)
    assert logits.shape == (2, 7)
    loss = F.cross_entropy(logits, torch.tensor([0, 6]))
    gradients = torch.autograd.grad(loss, list(network.parameters()), create_graph=True)
    (second,) = torch.autograd.grad(
        torch.stack([g.square().sum() for g in gradients]).sum(), images
    )
    assert second.isfinite().all()
    assert second.norm() > 0


@pytest.mark.some(3)
@pytest.mark.parametrize("name", sorted(IMAGE_MODELS))
def test_initialise_depends_on_the_generator_alone(name: str) -> None:
    def weights(seed: int) -> torch.Tensor:
        network = make(name)
        network.initialise(generator(seed))
        return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])

    before = torch.get_rng_state()
    first = weights(3)
    torch.manual_seed(99)
    again, other = weights(3), weights(4)
    torch.set_rng_state(before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_lenet_draws_weights_and_biases_from_half_to_half() -> None:
    for parameter in make("lenet").parameters():
        assert parameter.abs().max() <= 0.5
    weight = make("lenet").get_parameter("fc.weight")
    # A uniform variable of width 1 has the variance 1/12.
    assert weight.var().item() == pytest.approx(1 / 12, rel=0.03)


@pytest.mark.parametrize("name", ["mlp", "resnet20"])
def test_kaiming_variance_is_two_over_fan_in(name: str) -> None:
    for parameter in make(name, classes=100).parameters():
        if parameter.dim() > 1 and parameter.numel() > 10_000:
            assert parameter.var().item() * parameter[0].numel() == pytest.approx(2, rel=0.05)


def test_lenet_is_the_published_stack() -> None:
    network, images = LeNet(CIFAR, 10), torch.rand(2, *CIFAR)
    w = dict(network.named_parameters())
    x = images
    for layer, stride in [(0, 2), (2, 2), (4, 1)]:
        weight, bias = w[f"body.{layer}.weight"], w[f"body.{layer}.bias"]
        x = torch.sigmoid(F.conv2d(x, weight, bias, stride=stride, padding=2))
    assert x[0].numel() == 768
    expected = x.flatten(1) @ w["fc.weight"].T + w["fc.bias"]
    torch.testing.assert_close(network(images), expected)


def test_resnet_shortcut_keeps_every_second_pixel_and_adds_empty_channels() -> None:
    block = ResidualBlock(2, 4).eval()
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.rand(1, 2, 6, 6)
    out = block(x)
    assert out.shape == (1, 4, 3, 3)
    torch.testing.assert_close(out[:, 1:3], x[:, :, ::2, ::2])
    assert out[:, [0, 3]].abs().max() == 0


@pytest.mark.parametrize("size", [33, 64])
def test_resnet18_is_torchvisions(size: int) -> None:
    network = ResNet18((3, size, size), 10).train()
    network.initialise(generator(5))
    w = dict(network.named_parameters())
    assert list(w)[:4] == ["conv1.weight", "bn1.weight", "bn1.bias", "layer1.0.conv1.weight"]
    assert list(w)[-2:] == ["fc.weight", "fc.bias"]

    def convolved(x: torch.Tensor, conv: str, norm: str, stride: int) -> torch.Tensor:
        weight = w[f"{conv}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)
        return F.batch_norm(x, None, None, w[f"{norm}.weight"], w[f"{norm}.bias"], training=True)

    images = torch.rand(2, 3, size, size, generator=generator(6))
    x = F.max_pool2d(convolved(images, "conv1", "bn1", 2).relu(), 3, 2, 1)
    for stage in range(1, 5):
        for number in range(2):
            at, stride = f"layer{stage}.{number}", 2 if stage > 1 and number == 0 else 1
            branch = convolved(x, f"{at}.conv1", f"{at}.bn1", stride).relu()
            branch = convolved(branch, f"{at}.conv2", f"{at}.bn2", 1)
            if stride == 2:
                x = convolved(x, f"{at}.downsample.0", f"{at}.downsample.1", 2)
            x = (x + branch).relu()
    expected = F.linear(x.mean((2, 3)), w["fc.weight"], w["fc.bias"])
    torch.testing.assert_close(network(images), expected)


def test_resnet_has_twenty_weight_layers() -> None:
    layers = [part for part in ResNet20(CIFAR, 10).modules() if hasattr(part, "weight")]
    assert sum(not isinstance(part, torch.nn.BatchNorm2d) for part in layers) == 20


@pytest.mark.parametrize(
    "name", ["resnet20-group-norm", "resnet20-norm-free", "resnet18-group-norm"]
)
def test_a_resnet_without_batch_normalisation_treats_images_one_by_one(name: str) -> None:
    network, images = make(name).train(), torch.rand(3, *CIFAR)
    alone = torch.cat([network(image[None]) for image in images])
    torch.testing.assert_close(network(images), alone, rtol=1e-3, atol=1e-4)
    assert not list(network.buffers())


def test_branches_without_normalisation_do_not_outgrow_their_sum() -> None:
    features: dict[str, torch.Tensor] = {}
    network = make("resnet20-norm-free")
    network.get_submodule("blocks").register_forward_hook(
        lambda *seen: features.update(last=seen[-1])
    )
    network(torch.rand(8, *CIFAR, generator=generator(0)))
    assert 0.1 < features["last"].std() < 10


def test_mlp_takes_its_width_and_depth() -> None:
    network = MLP((1, 2, 3), 4, width=5, depth=3)
    shapes = [tuple(p.shape) for p in network.parameters() if p.dim() == 2]
    assert shapes == [(5, 6), (5, 5), (5, 5), (4, 5)]


def test_text_models_lie_in_folders_of_their_names() -> None:
    assert MODELS.keys() == IMAGE_MODELS.keys() | TEXT_MODELS.keys()
    for name, folder in TEXT_MODELS.items():
        assert folder.name == name.replace("-", "_")
        assert (folder / "config.json").is_file()
