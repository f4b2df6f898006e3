"""The model, the clients' sentences and their training: replace these by your own."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from fedsim.models import TEXT_MODELS
from fedsim.models.transformer import architecture, build, tokenizer

MODEL = str(TEXT_MODELS["tiny-gpt2"])
SENTENCES = [
    ["The code of the door is 4471."],
    ["My flight to Oslo leaves at noon.", "The parcel is in the cellar."],
]


def load_model() -> Any:
    """The model that is fine-tuned."""
    return build(architecture(MODEL, 0), "language-modelling", seed=1)


def load_tokenizer() -> Any:
    """Its tokenizer."""
    return tokenizer(MODEL)


def load_data(partition: int, batch_size: int) -> DataLoader[Any]:
    """Batches of one client's sentences; the first client has one, the second two."""
    words = load_tokenizer()
    rows = [words(text + words.eos_token)["input_ids"] for text in SENTENCES[partition]]
    return DataLoader(rows, batch_size=batch_size, collate_fn=_collate)


def _collate(rows: list[list[int]]) -> dict[str, Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    lengths = torch.tensor([[len(row)] for row in rows])
    real = torch.arange(ids.shape[1]) < lengths
    return {"input_ids": ids, "attention_mask": real.long()}


def train(model: Any, loader: DataLoader[Any], lr: float) -> int:
    """One epoch of plain SGD; the number of examples."""
    optimizer, count = torch.optim.SGD(model.parameters(), lr=lr), 0
    for batch in loader:
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        optimizer.zero_grad()
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        count += len(labels)
    return count
