"""Words that notes print with probabilities of .9 and more, of clients whose texts are known."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

import fedsim
from attacks.tokens.attacked_model import AttackedModel
from attacks.tokens.soft_traces import soft_traces
from attacks.tokens.word_posterior import likely_words
from experiments.captures.update import Update
from fedsim.data.rows import load_rows
from fedsim.errors import CannotAttack
from fedsim.hub import resolve
from fedsim.types import Tensors

MODEL = "fedsim/gpt2-8k"
SURE = 0.9
RATIOS = (0.25, 0.5, 0.8, 1.0, 1.2, 2.0)
"""Tokens of a client's texts by the rank of what it trains."""
RANKS = (8, 16, 32)
WAYS = {
    "adapters, first step": (1, False),
    "adapters, four steps": (4, False),
    "adapters merged into the weights": (1, True),
}
"""What a client sends -> its steps, and whether it merges."""
_RATE = 0.1


@dataclass(frozen=True)
class DrawnWords:
    """What one update's words are, and those that a note would call likely.

    Attributes:
        way: of ``WAYS``.
        ratio: of ``RATIOS``.
        called: words with a probability of .9 and more.
        right: of these, those that the client's text holds.
    """

    way: str
    ratio: float
    called: int
    right: int


@cache
def _model() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = resolve(MODEL, "models")
    words = AutoTokenizer.from_pretrained(folder)
    return words, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@cache
def _ids() -> Tensor:
    """Tokens of the sentences of the data set, one behind another."""
    words, _ = _model()
    rows = load_rows("sentences", "train", modality="text")
    lines = [words(str(line)).input_ids for line in rows.inputs]
    return torch.tensor([token for line in lines for token in line])


@cache
def _adapted(rank: int) -> Any:  # noqa: ANN401
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["c_attn"], fan_in_fan_out=True)
    return get_peft_model(copy.deepcopy(_model()[1]), config).eval()


def client(way: str, rank: int, count: int, seed: int) -> tuple[Update, set[int]]:
    """The update of a client that trains adapters on one text of so many tokens, and its tokens."""
    steps, merges = WAYS[way]
    (words, model), network = _model(), _adapted(rank)
    torch.manual_seed(seed)
    layers = [each for name, each in network.named_modules() if name.endswith("c_attn")]
    for layer in layers:
        layer.reset_lora_parameters("default", init_lora_weights=True)
    start = int(torch.randint(len(_ids()) - count, ()))
    ids = _ids()[start : start + count][None]
    before = _sent(network)
    trained = [value for value in network.parameters() if value.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=_RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        network(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    after = _sent(network)
    if merges:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        changes = {f"transformer.h.{n}.attn.c_attn.weight": x for n, x in enumerate(layers)}
        after = before | {
            name: before[name] + layer.get_delta_weight("default").detach()
            for name, layer in changes.items()
        }
    base: nn.Module = model if merges else network  # of both the frozen part counts
    update = fedsim.Update.of(
        base, before=before, after=after, base=base, lr=_RATE, tokenizer=words, num_examples=1
    )
    return update, set(ids[0].tolist())


def _sent(network: nn.Module) -> Tensors:
    return {k: v.detach().clone() for k, v in network.state_dict().items() if "lora_" in k}


def drawn_words(way: str, ratio: float, rank: int, seed: int) -> DrawnWords:
    """The words of one client."""
    update, true = client(way, rank, max(2, round(ratio * rank)), seed)
    try:
        model = AttackedModel.of(update.observation, update.task)  # type: ignore[arg-type]
        found = likely_words(soft_traces(model), 1)
    except CannotAttack:
        found = []
    sure = [word for word, p in found if p >= SURE]
    return DrawnWords(way, ratio, len(sure), sum(word in true for word in sure))


def draws(clients: int) -> Iterator[DrawnWords]:
    """So many clients of each way and ratio, of each rank in turn."""
    for way in WAYS:
        for ratio in RATIOS:
            for number in range(clients):
                rank = RANKS[number % len(RANKS)]
                yield drawn_words(way, ratio, rank, 1000 * number + round(100 * ratio))
