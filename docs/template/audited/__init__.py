"""A Flower app that fine-tunes a language model on each client's sentences, and is audited."""

FOLDER = "/tmp/audited"
"""Where the server captures, and where consenting clients note what they trained on."""
