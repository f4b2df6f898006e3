"""An encoder's sentences, decoded from a blurred update."""
