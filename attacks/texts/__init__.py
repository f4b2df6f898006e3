"""Text attacks that match gradients."""
