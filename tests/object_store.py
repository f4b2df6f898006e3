"""A store with S3's interface on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An empty bucket; yields its URL, which this process and its children can open."""
    server = pytest.importorskip("moto.server", reason="needs moto: pip install -e .[dev]")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "test")
    store = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    store.start()
    try:
        host, port = store.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        from pyarrow.fs import FileSystem

        url = f"s3://bucket-{port}"  # what a store of the same process held is not forgotten
        opened, root = FileSystem.from_uri(f"{url}?allow_bucket_creation=true")
        opened.create_dir(root)
        yield url
    finally:
        store.stop()
