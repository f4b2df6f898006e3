"""Networks as other people write them: attention, recurrence, and what they return."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

import fedsim
from attacks import ATTACKS
from fedsim.errors import CannotAttack, ConfigError
from fedsim.types import Batch
from tests.experiments.captures.conftest import loss

IMAGE, LABEL = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(3)), torch.tensor([2])


def victim_of(network: nn.Module, objective: Any = loss, **knows: Any) -> fedsim.Update:
    """The update of one image of class 2."""
    value = objective(network.eval(), Batch(IMAGE, LABEL))
    gradients = torch.autograd.grad(value, list(network.parameters()))
    return fedsim.Update.of(
        network,
        gradients=list(gradients),
        loss=objective,
        image_shape=(3, 8, 8),
        **{"num_examples": 1, **knows},
    )


def gradients_of(network: nn.Module) -> list[Tensor]:
    """Of one image of class 2."""
    value = loss(network, Batch(IMAGE, LABEL))
    return list(torch.autograd.grad(value, list(network.parameters())))


class Patches(nn.Module):
    """A vision transformer of one block."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patch, self.block, self.head = nn.Conv2d(3, 16, 4, 4), block, nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patch(images).flatten(2).transpose(1, 2)
        mixed = self.block(tokens)
        tokens = mixed[0] if isinstance(mixed, tuple) else mixed
        return self.head(tokens.mean(1))  # type: ignore[no-any-return]


class Attention(nn.MultiheadAttention):
    """Self-attention by the fused kernel."""

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        mixed: Tensor = super().forward(tokens, tokens, tokens, need_weights=False)[0]
        return mixed


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1)


class Checkpointed(nn.Module):
    """Keeps no activation."""

    def __init__(self, *, older: bool) -> None:
        super().__init__()
        self.layers, self.older = nn.Sequential(nn.Linear(16, 16), nn.GELU()), older

    def forward(self, tokens: Tensor) -> Any:
        return checkpoint(self.layers, tokens, use_reentrant=self.older) + tokens


@pytest.mark.some(15)
@pytest.mark.parametrize(
    "block",
    [
        lambda: Attention(16, 2, batch_first=True),
        encoder,
        lambda: nn.LSTM(16, 16, batch_first=True),
        lambda: Checkpointed(older=False),
    ],
)
@pytest.mark.parametrize("attack", ["inverting", "dlg", "bayes"])
@pytest.mark.filterwarnings("ignore:.*vmap")
def test_searches_differentiate_twice(block: Any, attack: str) -> None:
    guess = fedsim.attack(victim_of(Patches(block())), attack, steps=2, quiet=True)
    assert guess.objective is not None
    assert guess.objective > 0


def test_the_older_checkpoints_of_activations_are_passed_over() -> None:
    network = Patches(Checkpointed(older=True))
    loss(network, Batch(IMAGE, LABEL)).backward()
    gradients = [value.grad for value in network.parameters()]
    victim = fedsim.Update.of(
        network, gradients=gradients, loss=loss, image_shape=(3, 8, 8), num_examples=1
    )
    guess = fedsim.attack(victim, "inverting", steps=2, quiet=True)
    assert guess.objective is not None


class OnceSquared(torch.autograd.Function):
    """An operation of another's, as of a kernel that was written by hand."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values.square()

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> Tensor:
        slope: Tensor = slopes * 2 * ctx.saved_tensors[0]
        return slope


class Once(nn.Linear):
    def forward(self, values: Tensor) -> Any:
        return OnceSquared.apply(super().forward(values))  # type: ignore[no-untyped-call]


def test_operations_without_a_second_derivative_are_named() -> None:
    """Of two searches at once; one takes the derivative that autograd records."""
    victim = victim_of(Patches(Once(16, 16)))
    assert fedsim.attack(victim, "inverting", steps=2, quiet=True).objective is not None
    with pytest.raises(CannotAttack, match=r"a layer has no second derivative .*setup_context"):
        fedsim.attack(victim, "inverting", steps=2, restarts=2, quiet=True)


def test_compiled_networks_are_refused_with_the_way_out() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(192, 5)))
    with pytest.raises(ConfigError, match=r"compiled by torch\.jit"):
        victim_of(scripted)


def test_a_frozen_patch_layer_is_named() -> None:
    network = Positioned(1)
    gradients = dict(zip(dict(network.named_parameters()), gradients_of(network), strict=True))
    network.patch.requires_grad_(False)
    victim = fedsim.Update.of(
        network,
        gradients={k: v for k, v in gradients.items() if not k.startswith("patch")},
        loss=loss,
        image_shape=(3, 8, 8),
        num_examples=1,
    )
    with pytest.raises(CannotAttack, match="'patch' of Positioned"):
        fedsim.attack(victim, "patch_rows", quiet=True)


class Cosines(nn.Module):
    """Classes by their angles, behind the last linear layer."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, width), nn.ReLU())
        self.prototypes = nn.Parameter(torch.randn(5, width))

    def forward(self, images: Tensor) -> Tensor:
        angles: Tensor = F.linear(F.normalize(self.body(images)), F.normalize(self.prototypes))
        return 9 * angles


@pytest.mark.parametrize("width", [5, 64])
def test_the_last_linear_layer_may_be_no_head(width: int) -> None:
    victim = victim_of(Cosines(width))
    assert victim.task.spec.num_classes == 5
    if width == 64:
        guess = fedsim.attack(victim, "spear", quiet=True)
        assert guess.certified == (True,)
        assert fedsim.score(guess, truth=IMAGE).mean("psnr") > 75


def test_restarts_differentiate_attention_twice_in_lanes() -> None:
    victim = victim_of(Patches(encoder()))
    guess = fedsim.attack(victim, "inverting", steps=2, restarts=2, quiet=True)
    assert guess.objective is not None


def test_an_attack_that_fails_is_a_line_of_suited(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(ATTACKS["dlg"], "guess", fail)
    suitability = fedsim.suited(victim_of(Patches(encoder())))
    assert suitability.reasons["dlg"] == "it fails (RuntimeError: no such kernel)"
    assert {"inverting", "bayes"} <= set(suitability.attacks)


class Positioned(Patches):
    """Patches with a table of positions, and with tokens before them."""

    def __init__(self, tokens: int, *, overlap: bool = False) -> None:
        super().__init__(encoder())
        if overlap:
            self.patch = nn.Conv2d(3, 16, 4, 2)
        self.start = nn.Parameter(torch.randn(1, tokens, 16))
        self.place = nn.Parameter(torch.randn(1, tokens + (9 if overlap else 4), 16))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.start.expand(len(images), -1, -1), patches], 1) + self.place
        return self.head(self.block(tokens).mean(1))  # type: ignore[no-any-return]


class TwoHeads(Positioned):
    """The mean of two heads, as of distilled transformers."""

    def __init__(self) -> None:
        super().__init__(2)
        self.other = nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch(images).flatten(2).transpose(1, 2)
        start = self.start.expand(len(images), -1, -1)
        tokens = self.block(torch.cat([start, patches], 1) + self.place)
        return (self.head(tokens[:, 0]) + self.other(tokens[:, 1])) / 2  # type: ignore[no-any-return]


def transformers_vit(**options: Any) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = ViTConfig(
        **sizes, intermediate_size=64, image_size=8, patch_size=4, num_labels=5, **options
    )
    network: nn.Module = ViTForImageClassification(config)
    return network


def without_a_head_bias() -> nn.Module:
    """As the projections of CLIP."""
    network = transformers_vit()
    network.classifier = nn.Linear(32, 5, bias=False)
    return network


def transformers_loss(model: Any, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch.inputs).logits, batch.labels)


def normalised(model: Any, batch: Any) -> Tensor:
    return loss(model, Batch((batch.inputs - 0.5) / 0.25, batch.labels))


@pytest.mark.some(2)
@pytest.mark.parametrize(
    ("network", "objective"),
    [
        (lambda: Positioned(0), loss),
        (lambda: Positioned(3), normalised),
        (lambda: Positioned(1, overlap=True), loss),
        (TwoHeads, loss),
        (transformers_vit, transformers_loss),
        (without_a_head_bias, transformers_loss),
    ],
    ids=["no token", "normalised", "overlap", "two heads", "transformers", "no bias"],
)
def test_patch_rows_of_any_vision_transformer(network: Any, objective: Any) -> None:
    guess = fedsim.attack(victim_of(network(), objective), "patch_rows", quiet=True)
    assert guess.certified == (True,)
    assert guess.labels == (2,)
    assert guess.images is not None
    torch.testing.assert_close(guess.images, IMAGE, atol=1e-3, rtol=0)


def test_a_batch_whose_examples_are_mixed_is_refused() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Flatten(), nn.Linear(192, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 5)
    )
    images = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    value = loss(network.train(), Batch(images, torch.tensor([0, 1, 2])))
    victim = fedsim.Update.of(
        network,
        gradients=list(torch.autograd.grad(value, list(network.parameters()))),
        loss=loss,
        image_shape=(3, 8, 8),
        num_examples=3,
        train_mode=True,
    )
    with pytest.raises(CannotAttack, match="training mode mixes"):
        fedsim.attack(victim, "spear", quiet=True)


def test_patches_without_positions_are_refused() -> None:
    with pytest.raises(CannotAttack, match="Patches has no"):
        fedsim.attack(victim_of(Patches(encoder())), "patch_rows", quiet=True)


class Returning(nn.Module):
    """Logits and features in a tuple, a dictionary, or a tuple of one."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 12, 5, 2, 2), nn.Sigmoid(), nn.Flatten())
        self.head, self.wrap = nn.Linear(192, 5), wrap

    def forward(self, images: Tensor) -> Any:
        features = self.body(images)
        return self.wrap(self.head(features), features)


@pytest.mark.parametrize(
    ("wrap", "take"),
    [
        (lambda logits, features: (logits, features), lambda out: out[0]),
        (lambda logits, features: [features, logits], lambda out: out[1]),
        (lambda logits, features: {"features": features, "logits": logits}, lambda o: o["logits"]),
    ],
    ids=["tuple", "list", "dictionary"],
)
def test_networks_that_return_more_than_logits(wrap: Any, take: Any) -> None:
    def objective(model: Any, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(take(model(batch.inputs)), batch.labels)

    victim = victim_of(Returning(wrap), objective)
    assert victim.task.spec.num_classes == 5
    assert fedsim.attack(victim, "closed_form", quiet=True).certified == (True,)
    assert fedsim.attack(victim, "inverting", steps=2, quiet=True).labels == (2,)


@pytest.mark.parametrize("layer", [nn.Identity(), nn.Dropout(0.5), nn.Unflatten(1, (8,))])
def test_layers_that_change_nothing_are_skipped(layer: nn.Module) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 5, 2, 2), layer, nn.Sigmoid(), nn.Flatten(), nn.Dropout(), nn.Linear(128, 5)
    )
    guess = fedsim.attack(victim_of(network), "closed_form", quiet=True)
    assert guess.certified == (True,)


class Scaled(nn.Module):
    """Takes a second input, which its owner's loss passes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, images: Tensor, scale: float) -> Tensor:
        return self.body(images) * scale  # type: ignore[no-any-return]


def of_scaled(model: Any, batch: Any) -> Tensor:
    return cross_entropy(model(batch.inputs, 2.0), batch.labels)


def reads_the_network(model: Any, batch: Any) -> Tensor:
    """The loss of an owner who reads dtype, parameters and parts of the network."""
    inputs = batch.inputs.to(next(model.parameters()).dtype)
    assert not model.training
    decay = sum(value.square().sum() for value in model.body.parameters())
    value: Tensor = cross_entropy(model(inputs, 2.0), batch.labels) + 0.0 * decay
    return value


@pytest.mark.some(2)
@pytest.mark.parametrize("objective", [of_scaled, reads_the_network])
@pytest.mark.parametrize("attack", ["closed_form", "inverting", "dlg"])
def test_losses_that_call_and_read_the_network_their_way(objective: Any, attack: str) -> None:
    options = {} if attack == "closed_form" else {"steps": 2}
    guess = fedsim.attack(victim_of(Scaled(), objective), attack, quiet=True, **options)
    assert attack != "closed_form" or (guess.certified == (True,) and guess.labels == (2,))


@pytest.mark.parametrize("older", [nn.utils.weight_norm, nn.utils.spectral_norm])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_older_norms_of_weights_are_copied(older: Any) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 5))
    older(network[1])
    victim = victim_of(network)
    assert fedsim.attack(victim, "inverting", steps=2, quiet=True).labels == (2,)
    with pytest.raises(CannotAttack, match="'1' of Sequential"):
        fedsim.attack(victim, "closed_form", quiet=True)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(192, 192), nn.Linear(192, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(self.body(images.flatten(1)).relu()).relu())  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(24, 16, batch_first=True), nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images.flatten(2).view(-1, 8, 24))[0][:, -1])  # type: ignore[no-any-return]


def parametrised(layer: int) -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 5))
    nn.utils.parametrizations.weight_norm(network[layer])
    return network


def volumes() -> nn.Module:
    layers = nn.Unflatten(1, (1, 3)), nn.Conv3d(1, 2, 3, 1, 1), nn.Sigmoid(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(384, 5))


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (Twice(), "'body' of Twice is called 2 times in a pass"),
        (Recurrent(), "'body' of Recurrent is recurrent"),
        (parametrised(1), "'1' of Sequential"),
        (parametrised(3), "'3' of Sequential computes its weight"),
        (volumes(), "'1' of Sequential is Conv3d"),
    ],
)
def test_layers_that_cannot_be_inverted_are_named_with_the_cause(
    network: nn.Module, reason: str
) -> None:
    with pytest.raises(CannotAttack, match=reason):
        fedsim.attack(victim_of(network), "closed_form", quiet=True)


@pytest.mark.some(3)
@pytest.mark.parametrize("attack", ["inverting", "dlg", "bayes"])
def test_a_search_says_which_range_it_took_for_granted(attack: str) -> None:
    options = {} if attack == "bayes" else {"steps": 2}
    victim, said = victim_of(Scaled(), of_scaled), "inputs were taken to lie in [0, 1]"
    assert said in fedsim.attack(victim, attack, quiet=True, budget=0.2, **options).note
    assert said not in fedsim.attack(victim, "closed_form", quiet=True).note
    told = victim_of(Scaled(), of_scaled, input_range=(-1, 1))
    assert said not in fedsim.attack(told, attack, quiet=True, budget=0.2, **options).note


def test_parameters_without_a_gradient_may_be_none() -> None:
    network = Scaled()
    network.register_module("unused", nn.Conv2d(1, 1, 1))
    value = of_scaled(network.eval(), Batch(IMAGE, LABEL))
    gradients = torch.autograd.grad(value, list(network.parameters()), allow_unused=True)
    names = [name for name, _ in network.named_parameters()]
    for given in (list(gradients), dict(zip(names, gradients, strict=True))):
        victim = fedsim.Update.of(
            network, gradients=given, loss=of_scaled, image_shape=(3, 8, 8), num_examples=1
        )
        assert fedsim.attack(victim, "closed_form", quiet=True).certified == (True,)


def test_a_target_for_each_pixel_is_refused() -> None:
    network = nn.Conv2d(3, 2, 1)
    with pytest.raises(ConfigError, match=r"one class an image; targets of shape \(8, 8\) are not"):
        fedsim.Update.of(network, gradients=[], loss=loss, image_shape=(3, 8, 8))


class WithAuxiliary(nn.Module):
    """A network with an auxiliary head, which only some losses read."""

    def __init__(self, aux: nn.Module, *, first: bool = False, always: bool = False) -> None:
        super().__init__()
        self.body = nn.Linear(64, 24)
        if first:
            self.aux = aux
        self.head, self.always = nn.Linear(24, 4), always
        if not first:
            self.aux = aux

    def forward(self, x: Tensor) -> Any:
        hidden = nn.functional.relu(self.body(x.flatten(1)))
        if self.always or self.training:
            return self.head(hidden), self.aux(hidden)
        return self.head(hidden)


def main_loss(model: Any, batch: Any) -> Tensor:
    made = model(batch.inputs)
    return cross_entropy(made[0] if isinstance(made, tuple) else made, batch.labels)


@pytest.mark.some(3)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    "network",
    [
        lambda: WithAuxiliary(nn.Linear(24, 7)),
        lambda: WithAuxiliary(nn.Linear(24, 7), first=True),
        lambda: WithAuxiliary(nn.Linear(24, 7), always=True),
        lambda: WithAuxiliary(
            nn.Sequential(nn.Linear(24, 9), nn.ReLU(), nn.Linear(9, 4)), always=True
        ),
    ],
)
def test_a_head_that_the_loss_does_not_read_tells_no_class(network: Any, *, zeros: bool) -> None:
    torch.manual_seed(0)
    model, labels = network(), torch.tensor([1, 3])
    pictures = torch.rand(2, 1, 8, 8)
    loss = main_loss(model, Batch(pictures, labels))
    parts = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    pairs = zip(parts, model.parameters(), strict=True)
    gradients = [torch.zeros_like(p) if part is None and zeros else part for part, p in pairs]
    victim = fedsim.Update.of(
        model, gradients=gradients, loss=main_loss, image_shape=(1, 8, 8), num_examples=2
    )
    assert victim.task.spec.num_classes == 4
    guess = fedsim.attack(victim, "inverting", quiet=True, steps=1, restarts=1)
    assert sorted(guess.labels) == [1, 3]
    guess = fedsim.attack(victim, "spear", quiet=True)
    assert guess.certified == (True, True)


def test_a_loss_of_heads_in_training_alone_is_told_why_it_fails() -> None:
    def both(model: Any, batch: Any) -> Tensor:
        main, aux = model(batch.inputs)
        return cross_entropy(main, batch.labels) + 0.3 * cross_entropy(aux, batch.labels)

    ones = [torch.ones_like(value) for value in WithAuxiliary(nn.Linear(24, 4)).parameters()]
    with pytest.raises(ConfigError, match=r"depend on self\.training"):
        fedsim.Update.of(
            WithAuxiliary(nn.Linear(24, 4)), gradients=ones, loss=both, image_shape=(1, 8, 8)
        )
