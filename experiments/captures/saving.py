"""How observations enter a folder of captures."""

from fedsim.store.capture import CaptureRecord, CaptureStore, Observation
from fedsim.store.files import save_tensors, write_json


def save_capture(
    store: CaptureStore, seen: Observation, record: CaptureRecord, broadcasts: dict[str, str]
) -> None:
    """Write an observation, and its record last.

    Args:
        store: where to.
        seen: the observation.
        record: whose fields about the files are filled in here.
        broadcasts: ``record.sent_sha256`` -> hash of the broadcast that was written for it; equal
            ones are written once.
    """
    if record.sent_sha256 not in broadcasts:
        part = store.root / "models" / "part.safetensors"
        sha256 = broadcasts[record.sent_sha256] = save_tensors(part, seen.sent)
        part.rename(store.sent_path(sha256))
    path = store.tensors_path(seen.key)
    changes = {
        "kind": seen.kind,
        "order": tuple(seen.received),
        "sha256": save_tensors(path, seen.received),
        "bytes": sum(value.nbytes for value in seen.received.values()),
        "sent_sha256": broadcasts[record.sent_sha256],
        "sent_order": tuple(seen.sent),
        "knowledge": seen.knowledge,
        "beside": (),
    }
    write_json(path.with_suffix(".json"), record.model_copy(update=changes))
