"""Broadcast models and what clients send, by modality."""

from pathlib import Path

import torch

from fedsim.knowledge import Knowledge
from fedsim.store.capture import CaptureKey, CaptureRecord, CaptureStore
from fedsim.store.files import digest, save_tensors, write_json
from fedsim.types import Rows, Tensors

TEXTS = Rows(("The boat left.", "Rain."), torch.tensor([0, 1]), (0, 1))


IMAGES = Rows(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1]), (0, 1))


def capture(cell: Path, number: int, sent: Tensors) -> None:
    """One capture as the server writes it."""
    store = CaptureStore(cell / "captures")
    key = CaptureKey(round=number, client=2)
    temporary = cell / "sent.safetensors"
    sha256 = save_tensors(temporary, sent)
    store.sent_path(sha256).parent.mkdir(parents=True, exist_ok=True)
    temporary.rename(store.sent_path(sha256))
    record = CaptureRecord(
        key=key,
        kind="gradient",
        order=(),
        sha256=digest(b""),
        bytes=0,
        sent_sha256=sha256,
        sent_order=tuple(sent),
        knowledge=Knowledge(),
    )
    write_json(store.tensors_path(key).with_suffix(".json"), record)
