"""Clients that depart from plain steps, each by one cause, and what is said of them."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fedsim
from experiments.captures.guess import Guess
from experiments.captures.update import Update
from fedsim.types import Tensors

SHAPE, RATE = (3, 8, 8), 0.1
NEAR = 0.01
"""Mean squared error of a picture up to which a cause that is told of it may stand."""
Activation = Callable[[Tensor], Tensor]


class Net(nn.Module):
    """One or two hidden layers of a width, with dropout before the head."""

    def __init__(self, *widths: int, activation: Activation = F.relu) -> None:
        super().__init__()
        sizes = (192, *widths)
        layers = [nn.Linear(a, b) for a, b in zip(sizes, widths, strict=False)]
        self.layers, self.h = nn.ModuleList(layers), nn.Linear(widths[-1], 10)
        self.activation, self.dropout = activation, nn.Dropout(0.3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of pictures."""
        x = x.flatten(1)
        for layer in self.layers:
            x = self.activation(layer(x))
        return self.h(self.dropout(x))  # type: ignore[no-any-return]


NETWORKS: dict[str, Callable[[], Net]] = {
    "narrow": lambda: Net(48),
    "tanh": lambda: Net(64, activation=torch.tanh),
    "square": lambda: Net(32, 32),
    "wide square": lambda: Net(64, 64),
}
CAUSES = {
    "plain": "",
    "rates by layer": "a factor of its own",
    "LARS": "a factor of its own",
    "Muon": "is orthogonalised",
    "Muon on the head": "is orthogonalised",
    "Muon that decays, AdamW beside": "is orthogonalised",
    "transposed": "is the transposed one",
    "ascent": "",
    "centralised": "add up to 0, as after gradient centralisation",
    "mixed labels": "its labels are mixed, 70%",
    "smoothed labels": "labels are smoothed by 0.1",
    "dropout": "as under dropout, a mask of units",
    "masked entries": "as under pruning or the mask",
    "noise": "is noise of one size",
    "another loss": "are none that the loss has for one class",
    "soft targets": "are none that the loss has for one class",
    "entropy bonus": "are none that the loss has for one class",
    "penalty of logits": "are none that the loss has for one class",
    "clipped by entry": "",
}
SENTENCES = {words: words for words in CAUSES.values() if words} | {
    "its labels are mixed, 70%": "its labels are mixed",
    "labels are smoothed by 0.1": "labels are smoothed",
}
"""What a note says of a cause -> the words that any such note has."""


@dataclass(frozen=True)
class DrawnCause:
    """One client.

    Attributes:
        cause: of ``CAUSES``.
        network: of ``NETWORKS``.
        said: words of the causes that the note names.
        right: words that it may have; empty for none.
        certified: whether the guess is proven.
        error: mean square from the client's picture; None without a guess.
    """

    cause: str
    network: str
    said: tuple[str, ...]
    right: str
    certified: bool
    error: float | None

    @property
    def wrong(self) -> bool:
        """Whether another cause is named."""
        return any(words != self.right for words in self.said)

    @property
    def near(self) -> bool:
        """Whether the guess is the client's picture."""
        return self.error is not None and self.error < NEAR


def loss(network: Any, batch: Any) -> Tensor:  # noqa: ANN401
    """As the attacker is told."""
    return F.cross_entropy(network(batch.inputs), batch.labels)


def picture(seed: int) -> Tensor:
    """A smooth one."""
    coarse = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(coarse, size=8, mode="bicubic").clamp(0.01, 1)


def objective(cause: str, outputs: Tensor, label: Tensor) -> Tensor:
    """The client's loss."""
    if cause == "mixed labels":
        other = F.cross_entropy(outputs, (label + 3) % 10)
        return 0.7 * F.cross_entropy(outputs, label) + 0.3 * other
    if cause == "another loss":
        return F.multi_margin_loss(outputs, label)
    if cause == "soft targets":
        return F.cross_entropy(outputs, label.new_tensor(range(10)).float().softmax(0)[None])
    smoothing = 0.1 if cause == "smoothed labels" else 0.0
    plain = F.cross_entropy(outputs, label, label_smoothing=smoothing)
    if cause == "entropy bonus":
        return plain + 0.1 * (F.softmax(outputs, 1) * F.log_softmax(outputs, 1)).sum()
    return plain + 1e-3 * outputs.square().sum() if cause == "penalty of logits" else plain


def step(cause: str, network: Net, image: Tensor, label: Tensor, seed: int) -> Tensors:
    """The weights after one step of a client."""
    torch.manual_seed(seed + 50)
    network = copy.deepcopy(network).train(cause == "dropout")
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    objective(cause, network(image), label).backward()
    slopes = {k: v.grad.clone() for k, v in network.named_parameters() if v.grad is not None}
    rng = torch.Generator().manual_seed(seed)
    rates = dict.fromkeys(slopes, RATE)
    if cause == "rates by layer":
        rates = {name: RATE * (0.3 if name.startswith("h") else 1) for name in slopes}
    if cause == "LARS":
        rates = {name: RATE * float(before[name].norm() / v.norm()) for name, v in slopes.items()}
    if cause == "transposed":
        slopes = {
            name: v.T if v.dim() == 2 and v.shape[0] == v.shape[1] else v
            for name, v in slopes.items()
        }
    if cause == "centralised":
        slopes = {k: v - v.mean(1, keepdim=True) if v.dim() > 1 else v for k, v in slopes.items()}
    if cause == "ascent":
        slopes = {name: -value for name, value in slopes.items()}
    if cause == "clipped by entry":
        slopes = {name: v.clamp(-0.1, 0.1) for name, v in slopes.items()}
    if cause == "masked entries":
        kept = torch.rand(slopes["h.weight"].shape, generator=rng) < 0.5
        slopes["h.weight"] = slopes["h.weight"] * kept
    after = {name: before[name] - rates[name] * slopes[name] for name in slopes}
    if cause == "noise":
        return {k: v + 5e-5 * torch.randn(v.shape, generator=rng) for k, v in after.items()}
    return after | _by_muon(cause, network) if cause.startswith("Muon") else after


def _by_muon(cause: str, network: Net) -> Tensors:
    """Parameters after its step on matrices, and after AdamW's on the others if that is beside."""
    named = dict(network.named_parameters())
    matrices = {name: value for name, value in named.items() if value.dim() == 2}
    chosen = {k: v for k, v in matrices.items() if k == "h.weight" or "head" not in cause}
    others = {k: v for k, v in named.items() if k not in chosen and "AdamW" in cause}
    decay = 0.1 if others else 0.0
    moved: Any = list(chosen.values())
    torch.optim.Muon(moved, lr=0.02, weight_decay=decay, momentum=0.0, nesterov=False).step()
    if others:
        torch.optim.AdamW(list(others.values()), lr=1e-3).step()
    return {name: value.detach() for name, value in (chosen | others).items()}


def victim(cause: str, name: str, seed: int) -> tuple[Update, Tensor, Tensor]:
    """A client's update, its picture and its class."""
    torch.manual_seed(seed)
    network = NETWORKS[name]().eval()
    image, label = picture(seed), torch.tensor([2 * seed % 10])
    update = fedsim.Update.of(
        network,
        before=network.state_dict(),
        after=step(cause, network, image, label, seed),
        loss=loss,
        image_shape=SHAPE,
        input_range=(0, 1),
        num_examples=1,
    )
    return update, image, label


def right(cause: str, name: str) -> str:
    """Words that a note may have; empty for none."""
    return "" if cause == "transposed" and "square" not in name else CAUSES[cause]


def drawn_cause(cause: str, name: str, seed: int) -> DrawnCause:
    """What `closed_form` says of one client."""
    update, image, _ = victim(cause, name, seed)
    guess: Guess = fedsim.attack(update, "closed_form", quiet=True)
    said = [
        words if words in guess.note else any_of_it
        for words, any_of_it in SENTENCES.items()
        if any_of_it in guess.note
    ]
    known = None if guess.images is None else torch.as_tensor(guess.images[0])
    error = None if known is None else float((known - image[0]).square().mean())
    return DrawnCause(
        cause, name, tuple(dict.fromkeys(said)), right(cause, name), any(guess.certified), error
    )


def draws(clients: int) -> Iterator[DrawnCause]:
    """Clients of every cause and network."""
    for cause, name, seed in product(CAUSES, NETWORKS, range(clients)):
        yield drawn_cause(cause, name, seed)
